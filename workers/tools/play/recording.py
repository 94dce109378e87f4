"""The episodes of a person as a dataset of Minari, which `algorithm: bc` clones.

In flows: what an agent saw and did in a world of one copy, and what that brought. Out flow: each episode, written when
it ends: whatever becomes of the world, those before are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Place
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.learning.datasets.minari_datasets import Episode, MinariWriter


class EpisodeRecording:
    """Those of the agent `place`. An episode that does not end is not written."""

    def __init__(self, writer: MinariWriter, place: Place) -> None:
        self._writer, self._place = writer, place
        self._rows: list[dict[str, NDArray[Any]]] = []
        """Of the episode that goes on: each column -> [1, ...]."""
        self.episodes = self.rows = self.left_out = 0
        """That are written; episodes that are not, as nobody played a turn of them."""
        self._absent = False

    def acted(self, present: AgentTimeStep, action: NDArray[Any], absent: bool = False) -> None:
        """A row begins; `absent`: the page was closed, and the fallback acted."""
        self._absent |= absent
        columns = self._seen(present.observation, present.action_mask) | self._place.parts("action", action)
        reward = {"reward": np.zeros(1, np.float32)}
        self._rows.append({name: column.copy() for name, column in (columns | reward).items()})

    def told(self, one: AgentTimeStep | AgentOutcome) -> None:
        """What the newest row brought; with an end, the episode is written."""
        last = self._rows[-1]
        last["reward"] += one.reward
        if not (one.terminated[0] or one.truncated[0]):
            return
        behind = {name: column for name, column in last.items() if name.startswith(("observation", "action_mask"))}
        behind |= {name: np.ones_like(column) for name, column in behind.items() if name.startswith("action_mask")}
        if one.final_observation is not None:
            behind |= self._place.parts("observation", one.final_observation)
        columns = {name: np.concatenate([row[name] for row in self._rows]) for name in last}
        if self._absent:
            self.left_out += 1
        else:
            self._writer.add([Episode(columns, behind, bool(one.terminated[0]))])
            self.episodes, self.rows = self.episodes + 1, self.rows + len(self._rows)
        self._rows, self._absent = [], False

    def _seen(self, observation: NDArray[Any], mask: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
        parts = self._place.parts("observation", observation)
        return parts if mask is None else parts | self._place.parts("action_mask", mask)
