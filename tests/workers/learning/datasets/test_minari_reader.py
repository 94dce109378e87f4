"""Episodes of Minari become rows that mean what an actor's rows mean: action, and what this action brought (J5)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from protocol.config.run import Run
from protocol.errors import ConfigurationError, RookeryError
from protocol.spaces import World
from tests.faults import raises
from tests.tools import skip_or_fail
from tests.workers import scripted
from tests.workers.learning.datasets.test_reader import whole
from workers.environments.registry import make
from workers.learning.buffers.nstep_gather import gather
from workers.learning.datasets.minari_datasets import MinariDataset
from workers.learning.datasets.source import DatasetSource, load_dataset
from workers.planning.policy_plan import PolicyPlan, plan_policies

try:
    import minari
    from minari.data_collector import EpisodeBuffer
except ImportError:
    skip_or_fail("minari is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari.utils")

SEEN, DONE = spaces.Box(-100.0, 100.0, (2,), np.float32), spaces.Discrete(3)
BC = {"name": "bc", "batch_size": 1}


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets lie in a folder of this test."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def episode(number: int, steps: int, end: str, seen: Any = None, done: Any = None, infos: Any = None) -> EpisodeBuffer:
    """Observation t is (number, t), action t is t mod 3, reward t is 10 * number + t; `end` of the last step."""
    return EpisodeBuffer(
        observations=np.array([[number, t] for t in range(steps + 1)], np.float32) if seen is None else seen,
        actions=np.arange(steps) % 3 if done is None else done,
        rewards=[10.0 * number + t for t in range(steps)],
        terminations=[t == steps - 1 and "terminated" in end for t in range(steps)],
        truncations=[t == steps - 1 and "truncated" in end for t in range(steps)],
        infos={} if infos is None else infos,
    )


def played(env: gymnasium.Env, seed: int) -> EpisodeBuffer:
    """An episode of random actions."""
    seen, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    observations, actions = [seen], []
    told: list[Any] = []
    while not told or not (told[-1][1] or told[-1][2]):
        actions.append(env.action_space.sample())
        seen, *rest = env.step(actions[-1])
        observations.append(seen)
        told.append(rest)
    rewards, terminated, truncated = ([one[i] for one in told] for i in range(3))
    return EpisodeBuffer(
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=rewards,
        terminations=terminated,
        truncations=truncated,
        infos={},
    )


def write(*episodes: EpisodeBuffer, id: str = "test/rows-v0", seen: Any = SEEN, done: Any = DONE) -> str:
    minari.create_dataset_from_buffers(id, list(episodes), observation_space=seen, action_space=done, env=None)
    return id


def plan_of(id: str, world: World | None = None, algorithm: Any = BC, length: int = 4) -> PolicyPlan:
    policy = {"algorithm": algorithm, "segment_length": length, "dataset": {"minari": id}}
    run = Run.model_validate({"actors": 0, "policy": policy})
    found = World(id="w", agents=(MinariDataset(id).agent,)) if world is None else world
    return plan_policies(run, found)[found.agents[0].name]


def read(plan: PolicyPlan) -> DatasetSource:
    counters = scripted.Counters(None, *scripted.LearnerReport.names([plan.name]))
    return load_dataset(plan, counters)


def test_rows_are_an_action_and_what_it_caused_J5() -> None:
    """Worked out by hand: episodes of 6, 4 and 2 steps, in segments of 4."""
    source = read(
        plan_of(
            write(episode(0, 6, "terminated"), episode(1, 4, "truncated"), episode(2, 2, "both terminated truncated"))
        )
    )
    records = source.arrivals("agent")[0].records
    assert records["valid"].tolist() == [4, 2, 4, 2]
    assert records["stream"].tolist() == [0, 0, 1, 2]
    c = source.ring.columns
    assert c["observation"][0].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4]]
    assert c["observation"][1, :3].tolist() == [[0, 4], [0, 5], [0, 6]]
    assert c["observation"][2].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3], [1, 4]]  # no reset row in between
    assert c["action"][0, :4].tolist() == [0, 1, 2, 0]
    assert c["action"][1, :2].tolist() == [1, 2]
    assert c["reward"][2, :4].tolist() == [10, 11, 12, 13]
    assert c["terminated"][:, :4].tolist()[1][:2] == [False, True]
    assert c["terminated"][3, :2].tolist() == [False, True]
    assert [c["truncated"][slot, : int(records["valid"][slot])].any() for slot in range(4)] == [
        False,
        False,
        True,
        False,
    ]
    assert c["final_row"].tolist() == [[-1] * 4, [-1] * 4, [3, -1, -1, -1], [-1] * 4]
    assert c["final_observation"][2, 0].tolist() == [1, 4]


def test_returns_bootstrap_from_the_true_last_observation_of_what_was_cut_off_J5() -> None:
    plan = plan_of(
        write(episode(1, 4, "truncated"), episode(2, 3, "terminated")),
        algorithm={"name": "dqn", "n_step": 2, "batch_size": 4},
    )
    source = read(plan)
    records, algorithm = source.arrivals("agent")[0].records, plan.config.algorithm
    rows = np.array([2, 3, 1, 2])
    batch, _ = gather(source.ring, plan.interface, plan.layout, records[[0, 0, 1, 1]], rows, algorithm)  # type: ignore[arg-type]
    assert batch["reward"].tolist() == pytest.approx([12 + 0.99 * 13, 13, 21 + 0.99 * 22, 22])
    assert batch["discount"].tolist() == pytest.approx([0.99**2, 0.99, 0, 0])
    assert batch["next_observation"][:2, 0].tolist() == [[1, 4], [1, 4]]


def test_an_episode_that_was_not_over_bootstraps_from_what_was_seen_last_J5() -> None:
    source = read(plan_of(write(episode(3, 2, "not over"))))
    c = source.ring.columns
    assert not c["truncated"][0, :2].any()
    assert c["observation"][0, 2].tolist() == [3, 2]
    assert (c["final_row"] == -1).all()


def test_nested_spaces_and_numbers_are_held_as_the_adapters_hold_them_J5() -> None:
    seen = spaces.Dict({"far": spaces.Box(-1.0, 1.0, (2,), np.float64), "gear": spaces.Discrete(3)})
    done = spaces.Tuple([spaces.Box(-2.0, 2.0, (1,), np.float64), spaces.MultiDiscrete([2, 3])])
    values = {"far": np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), "gear": np.array([0, 1, 2])}
    acts = (np.array([[1.5], [-0.5]]), np.array([[0, 2], [1, 1]]))
    source = read(plan_of(write(episode(0, 2, "truncated", values, acts), seen=seen, done=done)))
    c = source.ring.columns
    assert c["observation.far"].dtype == np.float32
    assert c["observation.far"][0, :3].tolist() == np.float32(values["far"]).tolist()
    assert c["observation.gear"][0, :3].tolist() == [0, 1, 2]
    assert c["action.0"][0, :2].tolist() == [[1.5], [-0.5]]
    assert c["action.1"][0, :2].tolist() == [[0, 2], [1, 1]]
    assert c["final_observation.gear"][0, 0] == 2


def test_masks_come_from_the_infos_and_an_action_that_they_forbid_is_refused_J5() -> None:
    infos = {"action_mask": np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1]], np.int8)}
    source = read(plan_of(write(episode(0, 2, "terminated", infos=infos))))
    assert source.ring.columns["action_mask"][0, :3].tolist() == [[True, False, True], [False, True, False], [True] * 3]
    forbidden = {"action_mask": np.array([[0, 1, 1], [0, 1, 0], [1, 1, 1]], np.int8)}
    with raises(ConfigurationError, "dataset_environment_mismatch", dataset="minari:test/forbidden-v0") as told:
        read(plan_of(write(episode(0, 2, "terminated", infos=forbidden), id="test/forbidden-v0")))
    assert "[segment_action_not_legal]" in whole(told.value)


def test_what_gymnasium_played_fits_the_same_environment_here_J5() -> None:
    """CartPole is stepped by its vectorised twin here; the spaces are the same."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=12)
    steps = [played(env, seed) for seed in range(3)]
    id = write(*steps, id="test/cartpole-v0", seen=env.observation_space, done=env.action_space)
    env.close()
    config = Run.model_validate({"environment": {"id": "gymnasium:CartPole-v1", "copies": 1}}).environment
    world = make(config).world
    source = read(plan_of(id, world))
    assert source.rows == sum(len(one.rewards) for one in steps)
    cut, fell = sum(bool(one.truncations[-1]) for one in steps), sum(bool(one.terminations[-1]) for one in steps)
    valid = np.arange(4) < source.arrivals("agent")[0].records["valid"][:, None]
    assert ((source.ring.columns["final_row"] >= 0).sum(), cut + fell) == (cut, 3)
    assert (source.ring.columns["terminated"][:, :4] & valid).sum() == fell
    other = World(id="w", agents=(scripted.AGENT.model_copy(update={"name": "agent"}),))
    facts = {"dataset": "minari:test/cartpole-v0", "field": "observation", "agent": "agent", "policy": "agent"}
    with raises(ConfigurationError, "dataset_agent_mismatch", **facts):
        read(plan_of(id, other))


def test_what_is_not_there_or_cannot_be_read_is_refused_in_a_sentence_J5(tmp_path: Path) -> None:
    with raises(ConfigurationError, "minari_dataset_not_found", dataset="test/nowhere-v0") as told:
        MinariDataset("test/nowhere-v0")
    assert "\n" not in str(told.value)
    with pytest.raises(ConfigurationError) as refused:
        MinariDataset("no id at all")
    assert refused.value.kind in ("minari_dataset_not_found", "minari_dataset_unreadable"), "as Minari's release has it"
    assert refused.value.dataset == "no id at all"
    assert "\n" not in str(refused.value)
    write(episode(0, 2, "terminated"))
    (data,) = tmp_path.rglob("main_data.hdf5")
    os.truncate(data, 200)
    with raises(ConfigurationError, "dataset_not_learnable", dataset="minari:test/rows-v0"):
        MinariDataset("test/rows-v0")


def test_rows_of_another_shape_than_the_dataset_says_are_refused_J5() -> None:
    write(episode(0, 2, "terminated", seen=np.zeros((2, 2), np.float32)))
    with raises(ConfigurationError, "dataset_not_learnable", dataset="minari:test/rows-v0") as told:
        read(plan_of("test/rows-v0"))
    cause = told.value.__context__
    assert isinstance(cause, RookeryError)
    assert cause.kind == "episode_shape_mismatch"
    assert cause.facts == {"field": "observation", "value": [2, 2], "expected": [3, 2]}


def test_without_the_package_it_is_named_J5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with raises(ConfigurationError, "dataset_needs_minari", key="policy.dataset.minari"):
        MinariDataset("test/rows-v0")
