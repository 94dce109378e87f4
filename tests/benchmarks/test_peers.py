"""Peers are counted from outside, and only ever compared with runs of ours between their own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.peers.__main__ import PEERS, compared, parsed
from tests.benchmarks.peers.small_network import small_network
from tests.benchmarks.peers.stepping import (
    AGENTS,
    COPIES,
    EPISODES,
    GUARDS,
    PICTURES,
    PLACE,
    SCORES,
    SPREAD_GAMMA,
    SPREAD_SEGMENT,
    Carts,
    Numbers,
    Pictures,
    Spread,
    _ended,
)
from tests.benchmarks.peers.watching import solved, watched
from workers.environments.registry import describe
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build
from workers.tools.bench.pipeline.workloads import workload

_TRAINING = """
import os, pathlib, time
from tests.benchmarks.peers.stepping import PLACE, Tally
tally = Tally()
pathlib.Path(os.environ[PLACE], "made-but-not-filled-yet").touch()
pathlib.Path("left-behind-by-a-peer").touch()
while True:
    tally.count(10)
    time.sleep(0.01)
"""


def test_each_peer_has_a_script_and_a_list_of_the_releases_it_needs_beside_our_torch() -> None:
    for peer, scripts in PEERS.items():
        assert all(importlib.util.find_spec(f"tests.benchmarks.peers.{script}") for script in scripts.values())
        lines = (Path(__file__).parent / "peers" / f"{peer}.txt").read_text().splitlines()
        assert [line for line in lines if "==" not in line or line.startswith(("torch==", "nvidia"))] == [], peer


def test_a_peer_is_watched_from_outside_and_ended() -> None:
    told = watched([sys.executable, "-c", _TRAINING], windows=2, seconds=0.3, warm=0.0)
    assert 0 < told["env_steps_per_second"] < 1_100
    assert told["peak_pss_gib"] > 0.01
    assert 0 <= told["cores"] < 1
    assert not Path("left-behind-by-a-peer").exists(), "it writes into a folder of its own"


_FALLING = """
import numpy as np
from tests.benchmarks.peers.stepping import Carts
carts = Carts(4)
carts.reset(seed=0)
while True:
    carts.step(np.zeros(4, np.int64))  # who only pushes to the left falls after 8 to 11 steps
"""


def test_a_return_is_awaited_from_outside() -> None:
    told = solved([sys.executable, "-c", _FALLING], target=8.0)
    assert 0 <= told["seconds"] < told["seconds_from_start"]
    assert told["env_steps"] >= 8 * 4


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where returns are awaited."""
    monkeypatch.setenv(SCORES, str(tmp_path))
    yield tmp_path
    _ended.cache_clear()


def test_carts_tell_the_mean_return_of_the_last_episodes(scores: Path) -> None:
    carts, lengths, since = Carts(4), [], np.zeros(4, np.int64)
    carts.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(6_000):
        begins = carts.prev_done.copy()  # this step only begins the next episode
        told = carts.step(generator.integers(2, size=4))
        since = np.where(begins, 0, since + 1)
        lengths += since[told[2] | told[3]].tolist()
    (path,) = scores.iterdir()
    assert len(lengths) > EPISODES
    assert np.fromfile(path)[0] == pytest.approx(np.mean(lengths[-EPISODES:]))


def test_copies_of_the_spread_tell_what_the_mean_agent_earned_and_worlds_never_stepped_tell_nothing(
    scores: Path,
) -> None:
    Spread(2)  # as a main process makes one to see its spaces
    spread, earned = Spread(2), np.zeros((AGENTS, 2))
    spread.reset()
    for _ in range(SPREAD_SEGMENT):
        assert not list(scores.iterdir()), "no episode has ended"
        earned += spread.step(np.zeros(AGENTS * 2, np.int64))[1].reshape(AGENTS, 2)
    (path,) = scores.iterdir()
    assert np.fromfile(path) == pytest.approx(earned.mean())
    for _ in range(SPREAD_SEGMENT):
        earned += spread.step(np.ones(AGENTS * 2, np.int64))[1].reshape(AGENTS, 2)
    assert np.fromfile(path) == pytest.approx(earned.mean() / 2), "each episode for itself"
    another = Spread(1)
    another.reset()
    total = 4 * np.fromfile(path)[0]
    for _ in range(SPREAD_SEGMENT):
        total += another.step(np.zeros(AGENTS, np.int64))[1].mean()
    assert [*scores.iterdir()] == [path], "those of another world of this process are told together with them"
    assert np.fromfile(path) == pytest.approx(total / 5)


def test_a_peer_that_ends_says_why() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        watched([sys.executable, "-c", "raise SystemExit('no such thing')"], windows=1, seconds=0.1, warm=0.0)


def test_worlds_count_the_steps_of_all_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    carts, numbers = Carts(8), Numbers(4)
    carts.reset(seed=0)
    for _ in range(3):
        carts.step(np.zeros(8, np.int64))
    assert numbers.reset().shape == (12, 64)
    observation, reward, over = numbers.step(np.zeros(12, np.int64))
    assert (observation.shape, reward.shape, over.shape) == ((12, 64), (12,), (12,))
    assert sorted(int(np.fromfile(path, np.int64)[0]) for path in tmp_path.iterdir()) == [4, 24]


@pytest.mark.parametrize("guards", [False, True])
def test_copies_of_the_spread_are_rows_agent_by_agent_and_begin_anew_where_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guards: bool
) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    if guards:
        monkeypatch.setenv(GUARDS, "1")
    mine, others = slice(2, 4), slice(10, 12)  # in what an agent sees: its own place, and how far the next one is
    copies = 32  # of which agents bump into each other in a few, wherever they begin
    spread = Spread(copies)
    seen = spread.reset().reshape(AGENTS, copies, 18)
    np.testing.assert_allclose(seen[0, :, mine] + seen[0, :, others], seen[1, :, mine], atol=1e-6)
    actions = np.zeros((AGENTS, copies), np.int64)
    actions[2] = 1  # the last agents go to the left
    told, reward, over = spread.step(actions.ravel())
    assert (told.shape, reward.shape) == ((AGENTS * copies, 18), (AGENTS * copies,))
    assert told.dtype == np.float32
    assert not over.any()
    speeds = np.median(told.reshape(AGENTS, copies, 18)[..., 0], 1)
    np.testing.assert_allclose(speeds, [0, 0, -0.5], atol=1e-3)
    for _ in range(SPREAD_SEGMENT - 1):
        told, _, over = spread.step(actions.ravel())
    assert over.all()
    assert (told[:, :2] == 0).all(), "new episodes begin at rest"
    assert np.median(spread.before[2 * copies :, 0]) < 0, "the old ones' last look is kept"
    assert [int(np.fromfile(path, np.int64)[0]) for path in tmp_path.iterdir()] == [copies * SPREAD_SEGMENT]


def test_worlds_of_peers_are_as_large_as_ours() -> None:
    data, _run = workload("W2", {})
    assert data["actors"] * data["environment"]["copies"] == COPIES
    assert data["policy"]["segment_length"] == SPREAD_SEGMENT
    assert data["policy"]["algorithm"]["gamma"] == SPREAD_GAMMA
    assert not data["environment"].get("settings"), "the peers' environment is made without settings too"


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_peers_are_as_many_bytes_as_ours(name: str) -> None:
    data, _run = workload(name, {})
    environment, (side, copies, agents) = data["environment"], PICTURES[name]
    assert (environment["settings"]["image"], environment["copies"]) == ([side, side, 4], copies)
    assert environment["settings"]["agents"] == agents
    observation, reward, over = (pictures := Pictures(name, 2)).step(pictures.reset()[:, 0, 0, 0] * 0)
    assert observation.shape == (2 * agents, 4, side, side)
    assert observation.dtype == np.uint8
    assert len(reward) == len(over) == 2 * agents


def test_the_small_network_of_peers_is_ours() -> None:
    _data, run = workload("W5-10", {})
    (plan,) = plan_policies(run, describe(run.environment)).values()
    policy = build(plan.interface, plan.config, 0)
    ours = [one.shape for name, one in policy.named_parameters() if name.startswith("encoder.")]
    assert ours == [one.shape for one in small_network().parameters()]


def test_carts_that_are_begun_anew_stand_in_the_middle_again() -> None:
    carts = Carts(4)
    carts.reset(seed=0)
    for _ in range(5):
        carts.step(np.ones(4, np.int64))
    which = np.array([True, False, True, False])
    carts.restart(which)
    assert carts.state is not None
    assert (np.abs(carts.state[:, which]) <= 0.05).all()
    assert (carts.steps[which] == 0).all()
    assert carts.steps[1] == 5


def test_medians_of_a_peer_are_told_beside_ours() -> None:
    theirs, ours = ([{"env_steps_per_second": rate} for rate in rates] for rates in ((10, 20, 90), (50, 60, 40)))
    told = compared("rllib", theirs, ours)
    assert told["theirs"] == {"env_steps_per_second": 20}
    assert told["ours_over_theirs"] == {"env_steps_per_second": 2.5}


def test_ours_may_step_the_same_world_built_in_and_no_other() -> None:
    given = parsed(["--workload", "W2", "--world", "spread", "torchrl"])
    worlds = [describe(workload("W2", environment)[1].environment) for environment in ({}, {"id": given.world})]
    with pytest.raises(SystemExit):
        parsed(["--workload", "W2", "--world", "rendezvous"])
    packaged, built_in = ([(place.name, place.observed.shape) for place in world.places] for world in worlds)
    assert packaged == built_in
    assert worlds[0].episode_steps == worlds[1].episode_steps
