"""Level-based foraging: two agents of levels 1 and 2 on a grid, and two foods that only both of them together can load;
many copies at once in numpy.

What is seen and done, what it brings, how episodes begin and end, and which actions are legal, is as in
`Foraging-8x8-2p-2f-coop-v3` of lbforaging (https://github.com/semitable/lb-foraging; Christianos et al. 2020,
arXiv:2006.07169), in which a policy that learned here can be tried. In flow: both agents' actions. Out flow: turns in
which both are present.

Legend: `E` copies, `n` some of the copies, `A` = 2 agents, `F` = 2 foods, `M` = 4 moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import AgentTimeStep, Environment, Turn, WorldSettings, parse_settings, refuse_sequential
from workers.environments.worlds.base.fixed_length import TurnMode

LOAD = 5
"""The action beside staying (0) and moving up, down, left and right (1 to 4)."""
_MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)])

_Cells = NDArray[np.int64]
"""[n, (row, column)]"""


class ForagingSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    size: int = Field(default=8, ge=6, le=1_000)
    """Rows and columns of cells; in a smaller field there may be no room for the second food."""
    turns: int = Field(default=50, ge=1)
    """Turns after which an episode ends, whatever is left."""


class Foraging(Environment):
    """`copies` fields; ConfigurationError for settings that cannot work.

    Observation [12] float32: row, column and level of each food, row by row (−1, −1, 0 for one that was loaded), then
    of oneself and of the other. Legal are moves to where no wall and no food is, and to load beside a food. Who would
    end in one cell stay where they are. A food's level is the sum of the agents' levels: it is loaded when both do
    beside it, and brings 0.5, shared by level. An episode is terminated when all is loaded, or after `turns` turns.
    """

    has_state = True

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("foraging", ForagingSettings, settings)
        refuse_sequential("foraging", turn_mode)
        box = Box(shape=(12,), low=-1, high=max(s.size - 1, 4))
        agents = tuple(
            Agent(name=f"agent_{i}", observation=box, action=Discrete(n=len(_MOVES)), action_mask=True)
            for i in range(2)
        )
        self.world, self.copies = World(id="foraging", agents=agents, episode_steps=s.turns), copies
        self._generator = np.random.Generator(np.random.PCG64(0))
        self._place: NDArray[np.int64] = np.zeros((copies, 2, 2), np.int64)
        """[E, A, (row, column)]"""
        self._level: NDArray[np.int64] = np.ones((copies, 2), np.int64)
        """[E, A]"""
        self._food: NDArray[np.int64] = np.zeros((copies, 2, 2), np.int64)
        """[E, F, (row, column)], row by row."""
        self._there = np.zeros((copies, 2), np.bool_)
        """[E, F]: whether it was not loaded yet."""
        self._turn: NDArray[np.int64] = np.zeros(copies, np.int64)

    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all copies, reproducibly from `seed`."""
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._begin(np.arange(self.copies))
        return self._told(np.zeros((self.copies, 2), np.float32), np.zeros(self.copies, np.bool_))

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """Both agents act at once; a copy whose episode has ended shows the next."""
        action = np.stack(actions, axis=1)
        target = self._place + _MOVES[action]
        apart = (target[:, 0] != target[:, 1]).any(axis=1)
        np.copyto(self._place, target, where=apart[:, None, None])
        loaded = (self._beside() & (action == LOAD)[:, :, None]).all(axis=1)
        self._there &= ~loaded
        share = self._level / (2 * self._level.sum(axis=1, keepdims=True))
        reward = (loaded.sum(axis=1, keepdims=True) * share).astype(np.float32)
        self._turn += 1
        ended = ~self._there.any(axis=1) | (self._turn >= self.settings.turns)
        self._begin(np.flatnonzero(ended))
        return self._told(reward, ended)

    def _beside(self) -> NDArray[np.bool_]:
        """[E, A, F]: who stands beside which food."""
        away: NDArray[np.int64] = np.abs(self._place[:, :, None] - self._food[:, None]).sum(axis=-1)
        return (away == 1) & self._there[:, None]

    def _legal(self) -> NDArray[np.bool_]:
        """[E, A, actions]"""
        near = self._place[:, :, None] + _MOVES[1:LOAD]
        wall = ((near < 0) | (near >= self.settings.size)).any(axis=-1)
        food = (near[:, :, :, None] == self._food[:, None, None]).all(axis=-1) & self._there[:, None, None]
        legal = np.ones((self.copies, 2, len(_MOVES)), np.bool_)
        legal[:, :, 1:LOAD] = ~(wall | food.any(axis=-1))
        legal[:, :, LOAD] = self._beside().any(axis=-1)
        return legal

    def _told(self, reward: NDArray[np.float32], ended: NDArray[np.bool_]) -> Turn:
        legal, seen = self._legal(), self._seen()
        never = np.zeros(self.copies, np.bool_)
        return Turn(
            tuple(
                AgentTimeStep(i, seen[i], np.ascontiguousarray(reward[:, i]), ended, never, action_mask=legal[:, i])
                for i in range(2)
            ),
            env_steps=self.copies,
        )

    def _seen(self) -> NDArray[np.float32]:
        """[A, E, 12]"""
        level = np.broadcast_to(self._level.sum(axis=1)[:, None, None], (self.copies, 2, 1))
        foods = np.where(self._there[..., None], np.concatenate((self._food, level), axis=-1), (-1, -1, 0))
        first = self._there[:, 0]
        foods = np.where(first[:, None, None], foods, foods[:, ::-1])
        agents = np.concatenate((self._place, self._level[..., None]), axis=-1)
        both = (np.concatenate((foods, agents[:, order]), axis=1) for order in ((0, 1), (1, 0)))
        return np.stack([one.reshape(self.copies, -1) for one in both]).astype(np.float32)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """New episodes in `copies` [n]: agents anywhere, foods not at the edge and not close to each other."""
        n, size = len(copies), self.settings.size
        agents = self._drawn(n, 0, size, lambda cell: np.zeros(n, np.bool_))
        place = np.stack((agents, self._drawn(n, 0, size, lambda cell: _same(cell, agents))), axis=1)

        def taken(cell: _Cells) -> NDArray[np.bool_]:
            return _same(cell, place[:, 0]) | _same(cell, place[:, 1])

        first = self._drawn(n, 1, size - 1, taken)
        second = self._drawn(n, 1, size - 1, lambda cell: taken(cell) | _close(cell, first))
        later = first @ (size, 1) > second @ (size, 1)
        self._place[copies] = place
        self._food[copies] = np.where(later[:, None, None], np.stack((second, first), 1), np.stack((first, second), 1))
        self._level[copies] = self._generator.integers(1, 3, (n, 2))
        self._there[copies], self._turn[copies] = True, 0

    def _drawn(self, n: int, low: int, high: int, taken: Callable[[_Cells], NDArray[np.bool_]]) -> _Cells:
        """[n, 2]: cells with rows and columns in low..high-1, drawn evenly among those that are not `taken`."""
        cell = self._generator.integers(low, high, (n, 2))
        while (again := taken(cell)).any():
            cell[again] = self._generator.integers(low, high, (int(again.sum()), 2))
        return cell

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_]:
        """[size, size]: where agents are."""
        cells = np.zeros((self.settings.size, self.settings.size), np.bool_)
        cells[tuple(self._place[copy].T)] = True
        return cells

    def render(self, copy: int = 0) -> str:
        """One copy as text: `a` and `b` the agents, the levels of foods."""
        rows = [["."] * self.settings.size for _ in range(self.settings.size)]
        for row, column in self._food[copy, self._there[copy]]:
            rows[row][column] = str(self._level[copy].sum())
        for name, (row, column) in zip("ab", self._place[copy], strict=True):
            rows[row][column] = name
        return "\n".join("".join(row) for row in rows)


def _same(cell: _Cells, other: _Cells) -> NDArray[np.bool_]:
    """[n]"""
    return np.asarray((cell == other).all(axis=1))


def _close(cell: _Cells, other: _Cells) -> NDArray[np.bool_]:
    """[n]: so close that one could stand beside both: next to each other, corners included, or two in a line."""
    away = np.abs(cell - other)
    return np.asarray((away.max(axis=1) <= 1) | ((away.min(axis=1) == 0) & (away.max(axis=1) <= 2)))
