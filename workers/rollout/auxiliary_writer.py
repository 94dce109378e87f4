"""An auxiliary's actor: it yields data of what others see, and controls nobody.

In flow: a policy's segments, whole, on their way out. Out flow: segments of the auxiliary, in a ring of its own: what
the policy was shown, copied when a block is finished, so that no turn of a seat takes longer.
Legend: `E` slots of a block, `T` segment length, `K` entries of the side table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Timeout
from protocol.experience.ring_buffer import Ring
from protocol.experience.shared_obs import SharedObs
from workers.policies.interface import Interface
from workers.rollout.agent_collector import Sender
from workers.rollout.segment_block import Rows


class AuxiliaryWriter:
    """Of one policy with `interface`, for one auxiliary, which `sender` sends to; streams are numbered from
    `first_stream`. `common` is what all agents see. `fraction` of each stream's segments is told, at equal distances.
    """

    def __init__(
        self,
        interface: Interface,
        sender: Sender,
        first_stream: int,
        fraction: float = 1.0,
        common: SharedObs | None = None,
    ) -> None:
        self._interface, self._sender, self._first = interface, sender, np.uint64(first_stream)
        self._fraction, self._common = fraction, common
        self._seen: dict[int, int] = {}
        """Blocks so far, by the first stream of each."""

    def copy_block(self, ring: Ring, slots: slice, valid: Rows) -> None:
        """A block of the policy is about to be finished, with so many rows, one number for all or one a slot."""
        streams = ring.table["stream"][slots]
        if not self._is_told(int(streams[0])):
            return
        into = self._sender.take(_no_wait)
        mine, theirs = self._sender.ring, ring
        rows = slice(0, theirs.layout.length + 1)
        columns = {name: column[slots] for name, column in theirs.columns.items()}
        before = theirs.layout.before
        lead = (len(streams), rows.stop)
        shown = self._interface.observation_encoding
        many = np.uint64(self._interface.place.many)

        def seen(name: str) -> NDArray:
            if name != "common":
                return columns[name][:, before:]
            assert self._common is not None
            place, _ = self._common.rows(columns["moment"][:, before:], streams // many)
            return self._common.values[place]

        mine.columns["observation"][into, rows] = shown.encode(seen, lead)
        final_row = columns["final_row"]
        ends = slice(0, final_row.shape[1])
        final = shown.encode(lambda name: columns[f"final_{name}"], final_row.shape)
        mine.columns["final_observation"][into, ends] = final
        mine.columns["final_row"][into] = -1
        mine.columns["final_row"][into, ends] = final_row
        table = mine.table
        table["stream"][into] = self._first + streams
        for name in ("stream_sequence", "version_min", "version_max", "episode"):
            table[name][into] = theirs.table[name][slots]
        self._sender.finish(into, valid, 0)

    def _is_told(self, stream: int) -> bool:
        count = self._seen[stream] = self._seen.get(stream, 0) + 1
        return int(count * self._fraction) > int((count - 1) * self._fraction)


class TeeSender:
    """The sender of a policy whose segments `witnesses` see as well."""

    def __init__(self, sender: Sender, witnesses: Sequence[AuxiliaryWriter]) -> None:
        self._sender, self._witnesses = sender, witnesses
        self.ring = sender.ring

    def take(self, on_wait: Callable[[], None]) -> slice:
        """Slots to write."""
        return self._sender.take(on_wait)

    def finish(self, slots: slice, valid: Rows, before: Rows) -> None:
        """The slots are whole."""
        for witness in self._witnesses:
            witness.copy_block(self.ring, slots, valid)
        self._sender.finish(slots, valid, before)


def _no_wait() -> None:
    raise Timeout("auxiliary_ring_without_room")
