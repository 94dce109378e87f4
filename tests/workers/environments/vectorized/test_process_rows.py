"""Rows of any form cross to processes and back: templates of many, nested observations, masks, actions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.spaces import Agent, ArrayPopulation, Box, Dict, Discrete, World
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.vectorized.process_environment import partition_seed

pytestmark = pytest.mark.usefixtures("forked_steppers")
MANY = 3
WORLDS = "tests.workers.environments.vectorized.test_process_rows:Swarm"


class Swarm(Environment):
    """Up to three of a kind in each copy, who come and go by chance, and all of whom see the same beside; what they did
    shows in what they see next."""

    def __init__(self, copies: int) -> None:
        sees = Dict(spaces={"eye": Box(shape=(2, 2), dtype="uint8"), "did": Box(shape=(3,))})
        does = Dict(spaces={"go": Box(shape=(2,), low=-1, high=1), "say": Discrete(n=4)})
        agent = Agent(name="bee", observation=sees, action=does, action_mask=True)
        common = Box(shape=(2,), dtype="float32")
        self.world = World(id="swarm", population=ArrayPopulation(template=agent, capacity=MANY, common=common))
        self.copies, self._place = copies, self.world.places[0]
        self._chance = np.random.default_rng(0)
        self._did = np.zeros((copies * MANY, 3), np.float32)
        self._open = np.zeros(copies * MANY, np.bool_)
        self._here: NDArray[np.int64] = np.empty(0, np.int64)
        self._common = np.zeros((copies, 2), np.float32)

    def reset(self, seed: int) -> Turn:
        self._chance = np.random.default_rng(seed)
        self._did.fill(0)
        self._open.fill(False)
        return self._turn()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        for chosen in actions:
            self._did[self._here, :2], self._did[self._here, 2] = chosen["go"], chosen["say"]
            self._open[self._here] = True
        return self._turn()

    def _turn(self) -> Turn:
        rows, chance = self.copies * MANY, self._chance
        here = chance.random(rows) < chance.choice([0.4, 1.0])
        end = chance.integers(4, size=rows)
        gone: NDArray[np.int64] = np.flatnonzero(~here & self._open & (end < 2))
        self._here = np.flatnonzero(here)
        before = self._common.copy()
        self._common[:] = chance.random(self._common.shape)
        outcomes = (AgentOutcome(0, gone, *self._brought(gone, end, before)),) if len(gone) else ()
        self._open[gone] = False
        if not len(self._here):
            return Turn((), 1, outcomes, common=self._common)
        reward, terminated, truncated, cut, final, common = self._brought(self._here, end, before)
        assert self._place.masked is not None
        legal = self._place.masked.zeros(len(self._here))
        legal["say"] = chance.random((len(self._here), 4)) < 0.5
        legal["say"][:, 1] = True
        everybody = None if here.all() else self._here
        seen = self._seen(self._here)
        present = AgentTimeStep(0, seen, reward, terminated, truncated, everybody, cut, final, common, legal)
        return Turn((present,), 1, outcomes, common=self._common)

    def _seen(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        seen = self._place.observed.zeros(len(rows))
        seen["eye"] = self._chance.integers(256, size=(len(rows), 2, 2))
        seen["did"] = self._did[rows]
        return seen

    def _brought(self, rows: NDArray[np.int64], end: NDArray[np.int64], before: NDArray[np.float32]) -> tuple[Any, ...]:
        waits = self._open[rows]
        reward = np.where(waits, self._did[rows].sum(axis=1), 0).astype(np.float32)
        terminated, truncated = waits & (end[rows] == 0), waits & (end[rows] == 1)
        cut = np.flatnonzero(truncated)
        if not len(cut):
            return reward, terminated, truncated, cut, None, None
        return reward, terminated, truncated, cut, self._seen(rows[cut]), before[rows[cut] // MANY]


def actions_for(present: AgentTimeStep, rows: int, salt: int) -> dict[int, tuple[list[float], int]]:
    """row -> numbers and a legal choice, which no other row has at this time."""
    every = np.arange(rows) if present.copies is None else present.copies
    assert present.action_mask is not None
    chosen = {}
    for i, row in enumerate(every.tolist()):
        legal = np.flatnonzero(present.action_mask["say"][i])
        chosen[row] = ([((7 * row + salt) % 50) / 50, -row / rows], int(legal[(row + salt) % len(legal)]))
    return chosen


def rows_of(environment: Environment, chosen: dict[int, tuple[list[float], int]]) -> NDArray[Any]:
    acted = environment.world.places[0].acted.zeros(len(chosen))
    for i, (go, say) in enumerate(chosen.values()):
        acted["go"][i], acted["say"][i] = go, say
    return acted


def told(turn: Turn, first: int = 0) -> dict[tuple[str, int], tuple[Any, ...]]:
    """All that a turn says, row by row from `first` on."""
    said: dict[tuple[str, int], tuple[Any, ...]] = {}
    both: tuple[tuple[str, tuple[AgentTimeStep | AgentOutcome, ...]], ...] = (
        ("present", turn.present),
        ("outcome", turn.outcomes),
    )
    for kind, entries in both:
        for one in entries:
            rows = np.arange(len(one.reward)) if one.copies is None else one.copies
            finals = {
                int(k): (one.final_observation[i].tobytes(), one.final_common[i].tolist())  # type: ignore[index]
                for i, k in enumerate(one.final_index)
            }
            for i, row in enumerate(rows.tolist()):
                seen = None
                if isinstance(one, AgentTimeStep):
                    assert one.action_mask is not None
                    seen = (one.observation[i].tobytes(), one.action_mask[i].tobytes())
                ends = (bool(one.terminated[i]), bool(one.truncated[i]), finals.get(i))
                said[kind, first + row] = (seen, float(one.reward[i]), *ends)
    return said


def test_every_share_tells_of_all_its_rows_whatever_their_form_and_has_the_actions_meant_for_them_K3_J9() -> None:
    """Row `copy * C + place`, of a share as of the whole group; each group sees its own copies, also what all see."""
    share, processes, groups = 2, 2, 2
    rows, copies = share * MANY, share * processes * groups
    alone = [[CheckedEnvironment(Swarm(share)) for _ in range(processes)] for _ in range(groups)]
    config = EnvironmentConfig(id=WORLDS, copies=copies, processes=processes, async_factor=groups)
    there = CheckedEnvironment(make(config))
    assert there.groups == groups
    try:
        turn = there.reset(5)
        seeds = [[partition_seed(5, (g * processes + i) * share) for i in range(processes)] for g in range(groups)]
        parts = [[one.reset(seed) for one, seed in zip(*pair, strict=True)] for pair in zip(alone, seeds, strict=True)]
        seen, ends = 0, 0
        for t in range(60 * groups):
            group = parts[t % groups]
            expected: dict[tuple[str, int], tuple[Any, ...]] = {}
            for i, part in enumerate(group):
                expected |= told(part, i * rows)
            assert turn.group == t % groups
            assert told(turn) == expected
            assert turn.common is not None
            assert np.array_equal(
                turn.common, np.concatenate([part.common for part in group if part.common is not None])
            )
            seen, ends = seen + len(expected), ends + sum(one[-1] is not None for one in expected.values())
            chosen = [actions_for(p, rows * processes, t) for p in turn.present]
            for i, part in enumerate(group):
                mine = range(i * rows, (i + 1) * rows)
                own = [rows_of(there, {r: done for r, done in chosen[0].items() if r in mine}) for _ in part.present]
                group[i] = alone[t % groups][i].step(own)
            turn = there.step([rows_of(there, one) for one in chosen])
        assert seen > 100
        assert ends > 10
    finally:
        there.close()


def test_whoever_dies_with_its_process_is_told_as_truncated_with_what_it_and_all_saw_last_J9() -> None:
    config = EnvironmentConfig(id=WORLDS, copies=4, processes=2, restarts=1)
    there = CheckedEnvironment(make(config))
    try:
        turn = there.reset(5)
        while not turn.present or turn.present[0].copies is not None:  # until everybody is there
            turn = there.step([rows_of(there, actions_for(p, 4 * MANY, 1)) for p in turn.present])
        assert turn.common is not None
        last, common = turn.present[0].observation.copy(), turn.common.copy()
        for child in psutil.Process().children():
            with suppress(psutil.ZombieProcess):  # of a test before this one
                words = [word for word in child.cmdline() if word]
                if "workers.environments.process_main" in words and words[-2] == "1":
                    child.kill()
        turn = there.step([rows_of(there, actions_for(p, 4 * MANY, 1)) for p in turn.present])
        cut: dict[int, tuple[bytes, list[float]]] = {}
        news: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.present, *turn.outcomes)
        for one in news:
            rows = np.arange(4 * MANY) if one.copies is None else one.copies
            for i, k in enumerate(one.final_index):
                assert one.final_observation is not None
                assert one.final_common is not None
                cut[int(rows[k])] = (one.final_observation[i].tobytes(), one.final_common[i].tolist())
        for row in range(2 * MANY, 4 * MANY):
            assert cut[row] == (last[row].tobytes(), common[row // MANY].tolist())
        assert there.restarts == 1
    finally:
        there.close()
