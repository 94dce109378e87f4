"""The replay mode of who remembers: whole segments, with the state that each began in (Kapturowski et al. 2019).

In flow: as of all replay. Out flow: `SequenceBatch`.
Legend: `b` segments of a batch, `T` segment length, `K` entries of the side table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.experience.ring_buffer import Records, Ring
from protocol.experience.shared_obs import SharedObs
from workers.algorithms.common.batches import SequenceBatch
from workers.learning.buffers.nstep_gather import FrameStack
from workers.learning.buffers.replay_buffer import ReplayBuffer


class SequenceReplay(ReplayBuffer[SequenceBatch]):
    """Draws as many segments as make a batch of rows, where they are full; a segment's chance is in proportion to its
    rows."""

    _kind = SequenceBatch

    def _places(self, size: int, progress: float) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        found = self._choose(max(1, size // self._layout.length))
        return None if found is None else (found[0], np.zeros_like(found[1]))

    def _rows_at(self, index: NDArray[np.int64]) -> int:
        return int(self._all.records["valid"][index].sum())

    def _gather(
        self, ring: Ring, records: Records, row: NDArray[np.int64], common: SharedObs | None
    ) -> tuple[dict[str, NDArray], NDArray[np.bool_]]:
        """All rows of the segments in `records` [b]; what is not real is 0."""
        layout, shown, actions = self._layout, self._interface.observation_encoding, self._interface.action_encoding
        slot, valid, length = records["slot"].astype(np.int64), records["valid"].astype(np.int64), layout.length
        time = np.arange(length + 1)
        rows = slot[:, None] * layout.rows + np.minimum(time, valid[:, None])
        seen = FrameStack(ring, self._interface, records["stream"], common)
        at, real = seen.at(rows[:, :-1]), time[:-1] < valid[:, None]
        observation = seen.frames(rows)
        observation[time > valid[:, None]] = 0
        action = actions.encode_choices(at, real.shape)
        action[~real] = 0
        terminated, ended = at("terminated") & real, at("truncated") & real
        final_row = ring.columns["final_row"][slot].astype(np.int64)
        columns = {
            "observation": observation,
            "action": action,
            "reward": np.where(real, at("reward"), np.float32(0)),
            "terminated": terminated,
            "truncated": ended & ~terminated,
            "valid": valid,
            "state": ring.columns["state"][slot],
        }
        inside = (final_row >= 0) & (final_row < valid[:, None])
        inside &= np.take_along_axis(columns["truncated"], np.clip(final_row, 0, length - 1), 1)
        columns["final_row"] = np.where(inside, final_row, -1)
        final = np.zeros((*final_row.shape, *shown.shape), shown.dtype)
        segment, entry = inside.nonzero()
        final[segment, entry] = seen.final(records["slot"][segment], entry)
        columns["final_observation"] = final
        if actions.masked:
            columns["legal"] = actions.legal(seen.at(rows), rows.shape)
        return columns, seen.there
