"""From one member to another within a copy: the ends of the old episode are told, the new one's agents act.

In flows: the turn in which an episode ended, which already shows the next one there; a turn in which another begins.
Out flow: the first one's news with the other one's presences. Neither loses nor repeats a reward.

Legend: `C` places of an agent in a copy, `n` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentOutcome, AgentTimeStep, Turn


def switch_turn(ended: Turn, begun: Turn, places: Sequence[int]) -> Turn:
    """What `ended` tells of each agent, with its presence in `begun` (which brings no news itself) or as an outcome.
    `places`: C of each agent."""
    entries: tuple[AgentTimeStep | AgentOutcome, ...] = (*ended.outcomes, *ended.present)
    news: dict[int, _Pending] = {}
    for told in entries:
        news.setdefault(told.agent, _Pending(places[told.agent])).add(told)
    present = tuple(
        replace(one, **news[one.agent].take(one.copies)) if one.agent in news else one for one in begun.present
    )
    rest = ((agent, left, brought) for agent, brought in news.items() if len(left := brought.left))
    outcomes = tuple(AgentOutcome(agent, left, **brought.take(left)) for agent, left, brought in rest)
    return replace(begun, present=present, env_steps=ended.env_steps, outcomes=outcomes)


def without_news(turn: Turn) -> Turn:
    """The same agents to act, when what their last actions brought has been told elsewhere."""
    present = tuple(replace(one, **_Pending(len(one.reward)).take(None)) for one in turn.present)
    return replace(turn, present=present, env_steps=0, outcomes=())


class _Pending:
    """What the last actions of one agent brought in one copy, by place."""

    def __init__(self, places: int) -> None:
        self._every: NDArray[np.int64] = np.arange(places)
        self._reward = np.zeros(places, np.float32)
        self._terminated = np.zeros(places, np.bool_)
        self._truncated = np.zeros(places, np.bool_)
        self._untold = np.zeros(places, np.bool_)
        self._finals: dict[int, tuple[NDArray | None, NDArray | None]] = {}

    def add(self, told: AgentTimeStep | AgentOutcome) -> None:
        """A place may be told of twice, with an outcome and with a presence after it."""
        at = self._every if told.copies is None else told.copies
        self._reward[at] += told.reward
        self._terminated[at] |= told.terminated
        self._truncated[at] |= told.truncated
        self._untold[at] |= (told.reward != 0) | told.terminated | told.truncated
        for row, place in enumerate(at[told.final_index].tolist()):
            seen, common = told.final_observation, told.final_common
            self._finals[place] = (
                None if seen is None else seen[row : row + 1],
                None if common is None else common[row : row + 1],
            )

    @property
    def left(self) -> NDArray[np.int64]:
        """[n]: places whose news nobody took."""
        return np.flatnonzero(self._untold)

    def take(self, places: NDArray[np.int64] | None) -> dict[str, Any]:
        """The fields of `AgentTimeStep` and `AgentOutcome` that hold news, for `places` [n] or all."""
        at = self._every if places is None else places
        self._untold[at] = False
        index = np.flatnonzero(self._truncated[at])
        finals = [self._finals[place] for place in at[index].tolist()]
        seen, common = ([part for final in finals if (part := final[k]) is not None] for k in (0, 1))
        return {
            "reward": self._reward[at],
            "terminated": self._terminated[at],
            "truncated": self._truncated[at],
            "final_index": index,
            "final_observation": np.concatenate(seen) if seen else None,
            "final_common": np.concatenate(common) if common else None,
        }
