"""What every world of rounds owes its players: exact ends, rewards told once, the same run from the same seed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from protocol.spaces import Box
from tests.faults import raises
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import BUILT_IN, make
from workers.environments.worlds.base.fixed_length import FixedLengthWorld

SMALL: dict[str, dict[str, Any]] = {
    "cleanup": {"height": 12, "width": 9, "agents": 4, "turns": 12, "radius": 2, "initial_waste": 0.1},
    "tag": {"height": 6, "width": 7, "agents": 3, "turns": 12, "radius": 2},
    "matrix_game": {"game": "chicken", "turns": 12, "observe": "last"},
    "memory": {"delay": 10, "agents": 2, "distract": True},
    "deep_sea": {"size": 12},
    "rendezvous": {"turns": 12},
    "weather": {"turns": 12, "agents": 2},
    "spread": {"turns": 12},
}
AT_ONCE = ("matrix_game", "rendezvous", "spread")
MODES = [
    ("cleanup", "sequential"),
    ("tag", "simultaneous"),
    ("memory", "sequential"),
    ("deep_sea", "simultaneous"),
    ("weather", "sequential"),
    *((id, "simultaneous") for id in AT_ONCE),
]
"""Each world in one mode, of which the base class of all takes care."""


def small(id: str, mode: str | None = None, copies: int = 6, **more: Any) -> FixedLengthWorld:
    """A small world, not yet reset."""
    config = EnvironmentConfig(id=id, copies=copies, turn_mode=mode, settings=SMALL[id] | more)  # type: ignore[arg-type]
    world = make(config)
    assert isinstance(world, FixedLengthWorld)
    return world


def actions(env: FixedLengthWorld, turn: Any, generator: np.random.Generator) -> list[Any]:
    """Random ones for everybody present."""
    chosen: list[Any] = []
    for p in turn.present:
        space, n = env.world.agents[p.agent].action, len(p.observation)
        if isinstance(space, Box):
            chosen.append(generator.uniform(-1, 1, (n, *space.shape)).astype(np.float32))
        else:
            chosen.append(generator.integers(space.n, size=n))
    return chosen


def rows(env: FixedLengthWorld, seed: int, steps: int) -> list[bytes]:
    """All that players are told in a run of random actions."""
    generator = np.random.default_rng(1)
    turn = env.reset(seed)
    told = []
    for _ in range(steps):
        for p in turn.present:
            told.append(b"".join(part.tobytes() for part in (p.observation, p.reward, p.terminated, p.truncated)))
            if p.final_observation is not None:
                told.append(p.final_observation.tobytes())
        turn = env.step(actions(env, turn, generator))
    return told


def test_every_world_of_rounds_is_tried_here() -> None:
    assert set(SMALL) == set(BUILT_IN) - {"treasure_hunt", "synthetic", "foraging"}


@pytest.mark.parametrize(("id", "mode"), MODES)
def test_the_same_seed_gives_the_same_trajectory_and_reset_forgets_the_run_before(id: str, mode: str) -> None:
    env = small(id, mode)
    first = rows(env, 3, 60)
    assert rows(env, 3, 60) == first
    assert rows(small(id, mode), 3, 60) == first
    if id not in ("matrix_game", "deep_sea"):  # which leave nothing to chance
        assert rows(env, 4, 60) != first


@pytest.mark.parametrize(("id", "mode"), MODES)
def test_K1_episodes_end_exactly_after_their_last_turn_terminated_or_truncated_but_never_both(
    id: str, mode: str
) -> None:
    env = small(id, mode)
    agents, over = len(env.world.agents), id in ("memory", "deep_sea", "weather")
    assert env.world.episode_steps == 12
    generator, checked = np.random.default_rng(0), CheckedEnvironment(env)
    turn = checked.reset(0)
    acted = dict.fromkeys(range(agents), 0)
    env_steps = 0
    for _ in range(40 * (agents if mode == "sequential" else 1)):
        for p in turn.present:
            ends = acted[p.agent] > 0 and acted[p.agent] % 12 == 0
            assert p.terminated.all() == p.terminated.any() == (ends and over)
            assert p.truncated.all() == p.truncated.any() == (ends and not over)
            acted[p.agent] += 1
        turn = checked.step(actions(env, turn, generator))
        env_steps += turn.env_steps
    assert env_steps == 40 * env.copies
    assert set(acted.values()) == {40}


@pytest.mark.parametrize(("id", "mode"), MODES)
def test_D3_every_reward_is_told_once_to_the_agent_and_in_the_episode_that_earned_it(
    id: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = small(id, mode)
    earned: list[Any] = []
    settle = env._rewards

    def kept() -> None:
        settle()
        earned.append(env._earned.copy())

    monkeypatch.setattr(env, "_rewards", kept)
    generator, agents = np.random.default_rng(2), len(env.world.agents)
    turn = env.reset(7)
    told: list[list[Any]] = [[] for _ in range(agents)]
    for _ in range(60 * (agents if mode == "sequential" else 1)):
        for p in turn.present:
            told[p.agent].append(p.reward.copy())
        turn = env.step(actions(env, turn, generator))
    assert np.any(earned), "nothing was earned, so nothing was tested"
    for agent in range(agents):
        assert not told[agent][0].any(), "no reward before the first action"
        assert np.array_equal(told[agent][1:], [turns[agent] for turns in earned[:59]])


@pytest.mark.parametrize(
    ("id", "mode"), [pair for pair in MODES if pair[0] in ("cleanup", "tag", "rendezvous", "spread")]
)
def test_the_final_observation_is_what_an_agent_sees_when_the_last_turn_is_over(id: str, mode: str) -> None:
    env, longer = small(id, mode, turns=3), small(id, mode, turns=100)
    generator = np.random.default_rng(0)
    turn, other = env.reset(5), longer.reset(5)
    agents = len(env.world.agents)
    for _ in range(3 * (agents if mode == "sequential" else 1)):
        chosen = actions(env, turn, generator)
        turn, other = env.step(chosen), longer.step(chosen)
    for p, q in zip(turn.present, other.present, strict=True):
        assert p.truncated.all()
        assert p.final_observation is not None
        assert p.final_index.tolist() == list(range(env.copies))
        assert np.array_equal(p.reward, q.reward)
        if id != "cleanup":  # where things have changed by themselves since
            assert np.array_equal(p.final_observation, q.observation)
        assert not np.array_equal(p.final_observation, p.observation)


@pytest.mark.parametrize("id", ["cleanup", "tag", "matrix_game", "rendezvous", "spread"])
def test_desynchronized_copies_end_their_first_episode_at_different_times_and_later_ones_in_full(id: str) -> None:
    env = small(id, "simultaneous", copies=200, desynchronize=True)
    generator = np.random.default_rng(0)
    turn, ends = env.reset(0), []
    for _ in range(36):
        turn = env.step(actions(env, turn, generator))
        assert turn.present[0].final_index.tolist() == np.flatnonzero(turn.present[0].truncated).tolist()
        ends.append(turn.present[0].truncated.copy())
    when = [np.flatnonzero(column) + 1 for column in np.array(ends).T]
    assert {int(w[0]) for w in when} == set(range(1, 13))
    assert {int(gap) for w in when for gap in np.diff(w)} == {12}


@pytest.mark.parametrize("id", list(SMALL))
def test_a_wrong_setting_is_one_sentence_that_says_what_to_do(id: str) -> None:
    with raises(ConfigurationError, "unknown_environment_setting", field="colour", key="environment.settings.colour"):
        small(id, colour=3)
    wrong: dict[str, tuple[str, Any]] = {
        "cleanup": ("beam", 0),
        "tag": ("agents", 1),
        "memory": ("cues", 1),
        "deep_sea": ("size", 1),
    }
    field, value = wrong.get(id, ("turns", 0))
    with raises(ConfigurationError, "environment_setting_invalid", key=f"environment.settings.{field}"):
        small(id, None, **{field: value})


@pytest.mark.parametrize("id", [*AT_ONCE, "synthetic", "foraging"])
def test_where_all_act_at_once_turns_are_refused(id: str) -> None:
    facts = {"value": "sequential", "environment": id, "expected": "simultaneous", "key": "environment.turn_mode"}
    with raises(ConfigurationError, "turn_mode_not_supported", **facts):
        make(EnvironmentConfig(id=id, copies=2, turn_mode="sequential"))


@pytest.mark.parametrize("id", list(SMALL))
def test_a_copy_is_drawn_as_text_and_a_gridworld_as_a_picture(id: str) -> None:
    env: Any = small(id)
    env.reset(0)
    lines = env.render(1).splitlines()
    if id in ("cleanup", "tag"):
        height, width = SMALL[id]["height"], SMALL[id]["width"]
        assert [len(line) for line in lines] == [width] * height
        assert env.render_rgb(1, scale=3).shape == (3 * height, 3 * width, 3)
        assert env.render_rgb(1).dtype == np.uint8
    elif id in ("rendezvous", "spread"):
        assert [len(line) for line in lines] == [33] * 33
        assert sorted("".join(lines).replace("#", "").replace(" ", "").upper())[-1] == "C"
        assert env.render_rgb(1, scale=2).shape == (66, 66, 3)
    else:
        assert len(lines) == (12 if id == "deep_sea" else 1)


@pytest.mark.parametrize("id", list(SMALL))
def test_K10_many_copies_cost_far_less_than_as_many_worlds(id: str) -> None:
    def fastest(copies: int) -> float:
        env = small(id, "simultaneous", copies)
        turn = env.reset(0)
        chosen = actions(env, turn, np.random.default_rng(0))
        times = []
        for _ in range(40):
            start = time.perf_counter()
            env.step(chosen)
            times.append(time.perf_counter() - start)
        return min(times)

    assert fastest(64) < 16 * fastest(1)
