"""Built-in worlds whose agents act in turn: asked to conclude, they tell the same ends, only earlier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.config.environment import EnvironmentConfig
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make

SMALL = {"height": 7, "width": 7, "turns": 4}
WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("treasure_hunt", {**SMALL, "agents": 3, "spawn": 0.3, "map": True, "desynchronize": True}),
    ("cleanup", {"turns": 4, "desynchronize": True}),
]
STEPS, COPIES = 90, 5


def ends(environment: Environment, asked: bool) -> tuple[dict[tuple[int, int], list[Any]], int]:
    """(agent, copy) -> what came with each end: return, last observation, what all saw; count by `flush_ends`."""
    running: dict[tuple[int, int], float] = {}
    found: dict[tuple[int, int], list[Any]] = {}
    early = 0
    chance = np.random.default_rng(7)

    def enter(told: AgentTimeStep | AgentOutcome) -> None:
        copies = range(COPIES) if told.copies is None else told.copies.tolist()
        finals = iter(range(len(told.final_index)))
        for row, copy in enumerate(copies):
            key = (told.agent, copy)
            running[key] = running.get(key, 0.0) + float(told.reward[row])
            if told.terminated[row] or told.truncated[row]:
                number = next(finals) if told.truncated[row] else -1
                last, shared = told.final_observation, told.final_common
                seen = [None if one is None else one[number].tobytes() for one in (last, shared)]
                found.setdefault(key, []).append((running.pop(key), bool(told.terminated[row]), *seen))

    turn = environment.reset(3)
    for _ in range(STEPS):
        for present in turn.present:
            enter(present)
        for outcome in environment.flush_ends() if asked else ():
            early += len(outcome.copies)
            enter(outcome)
        turn = environment.step([chance.integers(4, size=len(one.reward)) for one in turn.present])
    environment.close()
    return found, early


@pytest.mark.parametrize(("id", "settings"), WORLDS, ids=lambda one: one if isinstance(one, str) else "")
def test_what_is_concluded_is_told_once_and_the_same_I9(id: str, settings: dict[str, Any]) -> None:
    config = EnvironmentConfig(id=id, copies=COPIES, settings=settings)
    late, none = ends(CheckedEnvironment(make(config)), asked=False)
    told, early = ends(CheckedEnvironment(make(config)), asked=True)
    assert none == 0
    assert early > 0
    for key, expected in late.items():
        assert told[key][: len(expected)] == expected
        assert len(told[key]) - len(expected) <= 1, "at most that of an end which the others had still to hear of"


@pytest.mark.parametrize("id", ["treasure_hunt", "tag"])
def test_where_all_act_at_once_nothing_is_left_to_conclude(id: str) -> None:
    config = EnvironmentConfig(id=id, copies=COPIES, turn_mode="simultaneous", settings={"turns": 4})
    told, early = ends(CheckedEnvironment(make(config)), asked=True)
    assert early == 0
    assert told == ends(CheckedEnvironment(make(config)), asked=False)[0]
