"""From sampled places of rings to n-step transitions, copied in place: returns, stacks of frames, what was seen last.

In flow: records and rows of segments. Out flow: the fields of `TransitionBatch` as arrays, with the versions that their
actions were chosen by, and which of them were overwritten meanwhile.
Legend: `b` transitions, `F` frames, `R` rows of a slot, `n` steps of a return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import BC, SAC, Sampled
from protocol.experience.layout import Layout
from protocol.experience.ring_buffer import Records, Ring
from protocol.experience.shared_obs import SharedObs
from workers.learning.buffers.segment_index import SegmentIndex
from workers.policies.interface import Interface


class GatheredTransitions(NamedTuple):
    """Of b places, in their order."""

    columns: dict[str, NDArray]
    """The fields of `TransitionBatch` by name, [b, ...]."""
    versions: NDArray[np.uint64]
    """[b]: of the weights that chose the actions."""
    intact: NDArray[np.bool_]
    """[b]: whether all of it was there while it was copied."""


Gather = Callable[[Ring, Records, NDArray[np.int64], SharedObs | None], tuple[dict[str, NDArray], NDArray[np.bool_]]]
"""Copies columns of what begins at rows [b] of records [b] of a ring, and says of which all was there."""


def gather_all(
    everything: SegmentIndex, index: NDArray[np.int64], row: NDArray[np.int64], copy: Gather
) -> GatheredTransitions:
    """What lies at the records `index` [b] and the rows `row` [b] of their segments, from whichever rings."""
    columns: dict[str, NDArray] = {}
    versions, intact = np.empty(len(index), np.uint64), np.empty(len(index), np.bool_)
    for number in np.unique(everything.ring[index]):
        mine = everything.ring[index] == number
        ring, common = everything.rings[number]
        records = everything.records[index[mine]]
        with ring.reading():
            part, there = copy(ring, records, row[mine], common)
            versions[mine] = ring.columns["version"][records["slot"], ring.layout.before + row[mine]]
            intact[mine] = ring.intact(records) & there
        if len(part["action"]) == len(index):
            columns = part
        for name, array in part.items() if columns is not part else ():
            whole = columns.setdefault(name, np.empty((len(index), *array.shape[1:]), array.dtype))
            whole[mine] = array
    return GatheredTransitions(columns, versions, intact)


def gather(
    ring: Ring,
    interface: Interface,
    layout: Layout,
    records: Records,
    row: NDArray[np.int64],
    config: Sampled,
    common: SharedObs | None = None,
) -> tuple[dict[str, NDArray], NDArray[np.bool_]]:
    """n-step transitions that start at `row` [b] of the segments in `records` [b]; the fields of `TransitionBatch`, and
    whether all common observations in them were there [b].

    A return ends early at the episode's end and at the segment's last valid row. No row beyond the bootstrap row is
    read.
    """
    rows = layout.rows
    columns = {name: ring.columns[name].reshape(ring.slots * rows) for name in ("reward", "terminated", "truncated")}
    base = records["slot"].astype(np.int64) * rows + layout.before
    valid = records["valid"].astype(np.int64)
    total = np.zeros(len(row), np.float32)
    discount, alive = np.ones(len(row), np.float32), np.ones(len(row), np.bool_)
    last = row.copy()
    for step in range(config.n_step):
        at = row + step
        alive &= at < valid
        index = base + np.minimum(at, valid - 1)
        total += np.where(alive, discount * columns["reward"][index], np.float32(0))
        discount = np.where(alive, discount * np.float32(config.discount), discount)
        last = np.where(alive, at, last)
        alive &= ~(columns["terminated"][index] | columns["truncated"][index])
    end = base + last
    terminated, truncated = columns["terminated"][end], columns["truncated"][end]
    seen = FrameStack(ring, interface, records["stream"], common)
    first = base - records["before"].astype(np.int64)
    stack = stack_index(base + row, first, columns, config.frames)
    after = stack_index(end + 1, first, columns, config.frames)
    now, following = seen.frames(stack), seen.frames(after)
    cut = np.flatnonzero(truncated & ~terminated)
    if len(cut):
        slots = records["slot"][cut]
        entry = np.argmax(ring.columns["final_row"][slots] == last[cut, None], axis=1)
        frames = stack_index(end[cut], first[cut], columns, config.frames)[:, 1:]
        following[cut, :-1] = seen.frames(frames, cut)
        following[cut, -1] = seen.final(slots, entry)
    batch = {
        "observation": now,
        "action": interface.action_encoding.encode_choices(seen.at(base + row), (len(row),)),
        "reward": total,
        "discount": np.where(terminated, np.float32(0), discount),
        "next_observation": following,
        **kept_outputs(seen.at(base + row), layout, (len(row),)),
    }
    actions = interface.action_encoding
    if actions.continuous:
        batch["amount"] = actions.amount(seen.at(base + row), (len(row),))
    if actions.masked and isinstance(config, BC | SAC):
        batch["legal"] = actions.legal(seen.at(base + row), (len(row),))
    if actions.masked and not isinstance(config, BC):
        batch["next_legal"] = actions.legal(seen.at(np.where(truncated, end, end + 1)), (len(row),))
    return batch, seen.there


def kept_outputs(pick: Callable[[str], NDArray], layout: Layout, lead: tuple[int, ...]) -> dict[str, NDArray]:
    """`outputs` [*lead, C], where there are any: of their columns in `layout`, which `pick` gives [*lead, *shape]."""
    columns = [pick(name).reshape(*lead, -1) for name in layout.outputs]
    return {"outputs": np.concatenate(columns, -1, dtype=np.float32, casting="unsafe")} if columns else {}


def stack_index(
    newest: NDArray[np.int64], first: NDArray[np.int64], columns: Mapping[str, NDArray], frames: int
) -> NDArray[np.int64]:
    """[b, F] row indices of the stack whose newest frame is `newest`: it reaches neither beyond an episode's first row
    nor beyond `first`, but repeats the first row it may use."""
    index = np.empty((len(newest), frames), np.int64)
    index[:, -1] = newest
    for frame in range(frames - 2, -1, -1):
        following = index[:, frame + 1]
        before = np.maximum(following - 1, first)
        ended = columns["terminated"][before] | columns["truncated"][before]
        index[:, frame] = np.where(ended & (before < following), following, before)
    return index


class FrameStack:
    """What the policy for `interface` of streams [b] saw."""

    def __init__(self, ring: Ring, interface: Interface, stream: NDArray[np.uint64], common: SharedObs | None) -> None:
        self._columns, self._shown = ring.columns, interface.observation_encoding
        self._stream, self._common = stream // interface.place.many, common
        self.there = np.ones(len(stream), np.bool_)
        """[b]: whether everything asked for was there."""

    def at(self, rows: NDArray[np.int64]) -> Callable[[str], NDArray]:
        """column -> `rows` of it, as one long column."""

        def pick(name: str) -> NDArray:
            column = self._columns[name]
            return column.reshape(-1, *column.shape[2:])[rows]

        return pick

    def frames(self, rows: NDArray[np.int64], which: NDArray[np.int64] | slice = slice(None)) -> NDArray:
        """Rows [b, F] of the ring as one long column, of the streams `which`: [b, F, *shape]."""
        own = self.at(rows)

        def pick(name: str) -> NDArray:
            if name != "common":
                return own(name)
            assert self._common is not None
            place, found = self._common.rows(own("moment"), self._stream[which])
            self.there[which] &= found.all(1)
            return self._common.values[place]

        return self._shown.encode(pick, rows.shape)

    def final(self, slots: NDArray[np.uint32], entry: NDArray[np.int64]) -> NDArray:
        """Entries [b] of the side tables of `slots`: [b, *shape]."""
        return self._shown.encode(lambda name: self._columns[f"final_{name}"][slots, entry], entry.shape)
