"""What `rookery env` says of worlds: what they are, what is suspicious in them, and how to begin."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

from protocol.config.environment import EnvironmentConfig
from protocol.config.run import parse_run
from tests.faults import kinds_in
from tests.flows import runs
from workers.environments.registry import make
from workers.tools import environment
from workers.tools.environment import Walk, examined, main

HERE = "tests.workers.tools.test_environment"


class Odd(gymnasium.Env[Any, Any]):
    """Episodes of ten steps, each of which brings a random reward; with a `flaw` something is suspicious."""

    def __init__(self, flaw: str = "") -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.action_space = gymnasium.spaces.Discrete(3)
        self._flaw, self._step = flaw, 0

    def reset(self, **keys: Any) -> Any:
        super().reset(**keys)
        self._step = 0
        if self._flaw == "slow":
            time.sleep(0.02)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        over = self._step == 10 and self._flaw != "endless"
        last = self._flaw != "sparse" or over
        reward = 1.0 if self._flaw == "always" else float(self.np_random.random()) * last
        return self._seen(), reward, False, over, {}

    def _seen(self) -> Any:
        if self._flaw == "constant":
            return np.ones(2, np.float32)
        return (self.np_random.random(2) * (3 if self._flaw == "outside" else 1)).astype(np.float32)


SAID = {
    "constant": "never changes",
    "outside": "outside -1 to 1",
    "endless": "no episode ended",
    "always": "earns 10 in every episode",
    "sparse": "with the end of an episode alone",
    "slow": "an episode begins in",
}


def walked(id: str, **settings: Any) -> Walk:
    config = EnvironmentConfig(id=id, copies=1, settings=settings)
    return Walk(make(config)).go(0.0, least=200)


def test_a_first_step_in_which_a_world_is_compiled_counts_for_nothing() -> None:
    environment = make(EnvironmentConfig(id="matrix_game", copies=1))
    step, slow = environment.step, [1.0]

    def late(actions: Any) -> Any:
        time.sleep(slow.pop() if slow else 0.0)
        return step(actions)

    environment.step = late  # type: ignore[method-assign]
    walk = Walk(environment).go(0.0, least=20)
    assert (walk.turns, walk.env_steps) == (20, 19)
    assert walk.seconds < 1.0


@pytest.mark.parametrize("flaw", ["", *SAID])
def test_each_flaw_is_said_alone_and_of_a_sound_world_nothing(flaw: str) -> None:
    said = [*walked(f"{HERE}:Odd", flaw=flaw).suspicious()]
    assert len(said) == bool(flaw), said
    assert all(SAID[flaw] in one for one in said)


def test_what_a_world_is_and_how_fast_comes_as_json_with_a_configuration(tmp_path: Path, memory_dir: Path) -> None:
    told = runs.rookery("env", "gymnasium:Pendulum-v1", "--seconds", "0.2", "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    (agent,) = found["agents"]
    assert [part["shape"] for part in agent["sees"]] == [[3]]
    assert [(part["space"], part["high"]) for part in agent["does"]] == [("Box", 2.0)]
    assert found["episode_steps"] == [200, 200.0, 200]
    assert agent["random_return"] < -500
    assert min(found["steps_per_second"].values()) > 0
    assert parse_run(found["begin_with"]).environment.id == "gymnasium:Pendulum-v1"


def test_an_agents_steps_are_counted_where_it_acts() -> None:
    walk = walked("treasure_hunt", turns=20)
    assert {one.length for one in walk.episodes} == {20}
    assert {one.agent for one in walk.episodes} == {"agent_0", "agent_1"}


@pytest.mark.parametrize(
    ("id", "seconds", "algorithm", "processes"),
    [
        ("gymnasium:CartPole-v1", 1e-5, "ppo", 0),
        ("gymnasium:CartPole-v1", 5e-4, "ppo", 1),
        ("gymnasium:CartPole-v1", 1e-2, "dqn", 1),
        ("gymnasium:Pendulum-v1", 1e-2, "sac", 1),
    ],
)
def test_a_dear_world_has_processes_and_an_algorithm_that_uses_experience_again(
    id: str, seconds: float, algorithm: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EnvironmentConfig(id=id)
    walk = walked(id)
    monkeypatch.setattr(environment, "_rate", lambda *_: 1 / seconds)
    walk.seconds = seconds * walk.env_steps
    run = parse_run(examined(config, walk, 0.05)["begin_with"])
    assert run.policy.algorithm.name == algorithm
    assert (run.environment.processes > 0) == processes


def test_what_is_stepped_together_has_many_copies_and_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = walked("gymnasium:CartPole-v1")
    walk.seconds = 1e-2 * walk.env_steps
    monkeypatch.setattr(environment, "_rate", lambda *_: 10_000)
    run = parse_run(examined(EnvironmentConfig(id="gymnasium:CartPole-v1"), walk, 0.05)["begin_with"])
    assert (run.environment.copies, run.environment.processes, run.policy.algorithm.name) == (256, 0, "ppo")


class Flat(Odd):
    """Shows an image without channels."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 255, (12, 12), np.uint8)

    def _seen(self) -> Any:
        return self.np_random.integers(256, size=(12, 12), dtype=np.uint8)


def test_an_image_without_channels_is_stacked() -> None:
    config = EnvironmentConfig(id=f"{HERE}:Flat")
    run = parse_run(examined(config, walked(config.id), 0.05)["begin_with"])
    assert getattr(run.policy.algorithm, "frames", 1) == 4


def test_a_film_is_of_one_episode() -> None:
    world = make(EnvironmentConfig(id="treasure_hunt", copies=1, settings={"turns": 20}))
    walk = Walk(world).go(0.0, film=True)
    assert len(walk.frames) == 20 * len(world.world.agents)


def test_a_terminal_is_shown_a_picture(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("environment: {id: treasure_hunt, copies: 1}")
    plain, shown = (
        CliRunner().invoke(main, [str(config), "--seconds", "0.05", *more], color=True).output
        for more in ([], ["--picture"])
    )
    assert "\x1b[" in shown
    assert "\x1b[" not in plain


def test_what_is_no_environment_is_refused_as_in_a_run(tmp_path: Path) -> None:
    told = runs.rookery("env", "nothing_of_the_kind", cwd=tmp_path)
    assert (told.returncode, kinds_in(told.stderr)) == (2, ["unknown_environment"])
