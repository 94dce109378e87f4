"""Turns of single copies as one turn of all, and its actions as each copy's.

In flows: a turn of each copy, every agent's actions for all. Out flows: one turn, each copy's actions.

Legend: `E` copies, `C` places of an agent in a copy (1, or the capacity of a template), `n` rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import World
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn

_NONE: NDArray[np.int64] = np.empty(0, np.int64)


class TurnMerger:
    """Of a world in `copies` copies. Its arrays are new each time."""

    def __init__(self, world: World, copies: int) -> None:
        self._places, self._copies = [place.many for place in world.places], copies
        self._turns: Sequence[Turn] = ()
        self._rows: list[list[tuple[int, int, int]]] = []
        """For each entry of the last turn: (copy, entry in its turn, n) of its parts, one after another."""

    def merge(self, turns: Sequence[Turn]) -> Turn:
        """[E] turns, each of one copy, as one."""
        present: dict[int, list[tuple[int, int, AgentTimeStep]]] = {}
        outcomes: dict[int, list[tuple[int, AgentOutcome]]] = {}
        steps = 0
        for copy, turn in enumerate(turns):
            steps += turn.env_steps
            for entry, one in enumerate(turn.present):
                present.setdefault(one.agent, []).append((copy, entry, one))
            for outcome in turn.outcomes:
                outcomes.setdefault(outcome.agent, []).append((copy, outcome))
        self._turns = turns
        self._rows = [[(c, e, len(one.reward)) for c, e, one in present[agent]] for agent in sorted(present)]
        return Turn(
            tuple(self._present(agent, [(c, one) for c, _, one in present[agent]]) for agent in sorted(present)),
            steps,
            tuple(self._outcome(agent, outcomes[agent]) for agent in sorted(outcomes)),
            common=_joined([turn.common for turn in turns]),
        )

    def split(self, actions: Sequence[NDArray]) -> list[list[NDArray]]:
        """[E]: the actions for the turn of each copy, in the order of its entries; from those for the merged turn."""
        given: list[list[NDArray]] = [[_NONE] * len(turn.present) for turn in self._turns]
        for rows, chosen in zip(self._rows, actions, strict=True):
            at = 0
            for copy, entry, n in rows:
                given[copy][entry] = chosen[at : at + n]
                at += n
        return given

    def _present(self, agent: int, parts: list[tuple[int, AgentTimeStep]]) -> AgentTimeStep:
        told = [one for _, one in parts]
        everywhere = len(told) == self._copies and all(one.copies is None for one in told)
        index, final, common = _finals(told)
        return AgentTimeStep(
            agent,
            np.concatenate([one.observation for one in told]),
            np.concatenate([one.reward for one in told]),
            np.concatenate([one.terminated for one in told]),
            np.concatenate([one.truncated for one in told]),
            None if everywhere else self._where(agent, parts),
            index,
            final,
            common,
            _joined([one.action_mask for one in told]),
        )

    def _outcome(self, agent: int, parts: list[tuple[int, AgentOutcome]]) -> AgentOutcome:
        told = [one for _, one in parts]
        return AgentOutcome(
            agent,
            self._where(agent, parts),
            np.concatenate([one.reward for one in told]),
            np.concatenate([one.terminated for one in told]),
            np.concatenate([one.truncated for one in told]),
            *_finals(told),
        )

    def _where(self, agent: int, parts: Sequence[tuple[int, AgentTimeStep | AgentOutcome]]) -> NDArray[np.int64]:
        """[n]: the rows of all copies that the parts tell of."""
        many = self._places[agent]
        if many == 1:
            return np.array([copy for copy, _ in parts], np.int64)
        every = np.arange(many)
        return np.concatenate([copy * many + (every if one.copies is None else one.copies) for copy, one in parts])


def _finals(told: Sequence[AgentTimeStep | AgentOutcome]) -> tuple[NDArray[np.int64], NDArray | None, NDArray | None]:
    """(index [m], observation [m, *shape], common [m, *shape]) of what was truncated."""
    if not any(len(one.final_index) for one in told):
        return _NONE, None, None
    found, at = [], 0
    for one in told:
        found.append(one.final_index + at)
        at += len(one.reward)
    last, common = (_joined([getattr(one, name) for one in told]) for name in ("final_observation", "final_common"))
    return np.concatenate(found), last, common


def _joined(arrays: Sequence[NDArray | None]) -> NDArray | None:
    there = [array for array in arrays if array is not None]
    return np.concatenate(there) if there else None
