"""Where a receiver finds what agents see in common, whatever the policies: moments of an actor that shares its memory
lie in a ring of its; those of all others are copied into one.

In flow: what a header says of the moments that its segments refer to, and frames of moments. Out flow: a `SharedObs` to
look them up in, the same one for all policies of an actor, or a RookeryError.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError, WireError
from protocol.experience.ack_publisher import Key
from protocol.experience.layout import Layout
from protocol.experience.ring_buffer import FINISHED, Records, Ring
from protocol.experience.shared_obs import COMMON, SharedObs
from protocol.experience.validation import observed_rows, read_frame
from protocol.memory.shared_file import PREFIX, memory_dir
from protocol.messages.core import CommonRows


class Lease:
    """The blocks of moments that `segments` received segments refer to: kept until all of these are given back."""

    def __init__(self, slots: NDArray[np.int64], segments: int) -> None:
        self.slots, self.segments = slots, segments


class SharedObsStore:
    """The moments of all actors of `run`; what comes over the network lies in the file `path`, or in private memory."""

    def __init__(self, run: str, path: Path | None = None) -> None:
        self._run, self._path = run, path
        self._layout: Layout | None = None
        self._near: dict[Key, SharedObs] = {}
        self._rings: dict[str, Ring] = {}
        """Attached ones, by nonce."""
        self._left: list[ref[SharedObs]] = []
        """Those of relays that were started again since, as long as segments refer to them."""
        self._far: _Store | None = None
        self._blocks = 0

    def expect(self, layout: Layout, blocks: int) -> None:
        """Segments refer to moments of `layout`; there is to be room for `blocks` blocks from other nodes, made when
        the first come."""
        self._layout, self._blocks = layout, blocks

    def agree(self, told: CommonRows | None) -> bool:
        """Whether segments refer to moments; WireError if only one side thinks so."""
        if (self._layout is None) != (told is None):
            raise WireError("common_observations_differ")
        return told is not None

    def near(self, key: Key, told: CommonRows | None) -> SharedObs | None:
        """The moments of an actor that shares its memory, or of a relay that does; None where nothing is common."""
        if not self.agree(told):
            return None
        assert told is not None
        known = self._near.get(key)
        if known is None or (known.ring.nonce, int(known.writer)) != (told.nonce, told.writer):
            path = Path(told.ring)
            if not path.name.startswith(PREFIX):
                raise SharedMemoryError("ring_name_malformed", file=told.ring)
            ring = self._attach(path, told.nonce)
            if ring.nonce != told.nonce:
                raise SharedMemoryError("memory_of_another_writer", file=told.ring, peer=key[0], key="transport")
            if known is not None:
                self._left.append(ref(known))
            known = self._near[key] = SharedObs(ring, told.writer)
        known.ring.check_whole()
        return known

    def left(self, key: Key) -> SharedObs | None:
        """The moments that a dead actor left behind in memory."""
        if self._layout is not None and key not in self._near:
            path = memory_dir() / f"{PREFIX}{self._run}-{key[0]}.{key[1]}-{COMMON}.ring"
            self._near[key] = SharedObs(self._attach(path))
        return self._near.get(key)

    def frames(self, told: CommonRows | None) -> int:
        """How many frames of moments follow the columns."""
        return len(told.sent) if self.agree(told) and told is not None else 0

    def put(self, key: Key, told: CommonRows | None, frames: Iterable[Any]) -> SharedObs | None:
        """Copies moments that came over the network; where all that came from this actor lies."""
        if told is None or self._layout is None:
            return None
        if self._far is None:
            self._far = _Store(self._layout, self._blocks, self._path)
        return self._far.put(key, told, frames)

    def holds(self, key: Key, columns: dict[str, NDArray], records: Records, layout: Layout) -> bool:
        """Whether all moments have come that segments [n] refer to."""
        assert self._far is not None
        return self._far.rows(key, columns["moment"], records, layout) is not None

    def lend(self, key: Key, columns: dict[str, NDArray], records: Records, layout: Layout) -> Lease:
        """The blocks that segments refer to, all of which have come; they are kept from now on."""
        assert self._far is not None
        rows = self._far.rows(key, columns["moment"], records, layout)
        assert rows is not None
        return Lease(self._far.lend(rows), len(records))

    def give_back(self, lease: Lease) -> None:
        """One segment of the lease is needed no more."""
        lease.segments -= 1
        if lease.segments == 0 and self._far is not None:
            self._far.give_back(lease.slots)

    def living(self, actors: Set[Key]) -> None:
        """Who is a member: nobody else will refer to anything that no segment refers to now."""
        self._let_go()
        if self._far is not None:
            self._far.living(actors)

    def forget(self, key: Key) -> None:
        """Lets go of a dead actor's moments."""
        if self._near.pop(key, None) is not None:
            self._let_go()

    def close(self) -> None:
        """Lets go of all memory."""
        for ring in self._rings.values():
            ring.remove()
        self._rings.clear()
        self._near.clear()
        self._left.clear()
        if self._far is not None:
            self._far.ring.remove()
            self._far = None

    def _let_go(self) -> None:
        left = [common for known in self._left if (common := known()) is not None]
        self._left = [ref(common) for common in left]
        used = {common.ring.nonce for common in (*self._near.values(), *left)}
        for nonce in self._rings.keys() - used:
            self._rings.pop(nonce).remove()

    def _attach(self, path: Path, nonce: str = "") -> Ring:
        assert self._layout is not None
        if nonce in self._rings:
            return self._rings[nonce]
        ring = Ring.attach(path, self._layout)
        if nonce and ring.nonce != nonce:
            ring.close()
            raise SharedMemoryError("memory_not_the_announced", file=path, key="transport")
        self._rings[ring.nonce] = ring
        return ring


class _Store:
    """One ring for the moments of many actors. A block is kept while its actor may refer to it or a segment does."""

    def __init__(self, layout: Layout, blocks: int, path: Path | None) -> None:
        self.ring = Ring.create(path, layout, blocks, checksums=False)
        self._column = self.ring.columns["common"]
        self._moments = layout.rows
        self._row = layout.segment_bytes // layout.rows
        self._here = np.zeros((blocks, layout.rows), np.bool_)
        """Which moments of a block have come."""
        self._lent = np.zeros(blocks, np.int64)
        self._free = list(range(blocks))
        self._commons: dict[Key, SharedObs] = {}
        self._slots: dict[Key, dict[int, int]] = {}
        """Block -> slot."""
        self._alive: dict[Key, list[tuple[int, int]]] = {}
        self._writers = 0

    def put(self, key: Key, told: CommonRows, frames: Iterable[Any]) -> SharedObs:
        common = self._commons.get(key)
        if common is None:
            common = self._commons[key] = SharedObs(self.ring, self._writers)
            self._slots[key], self._writers = {}, self._writers + 1
        self._alive[key] = told.alive
        self._forget(key)
        for (first, count), frame in zip(told.sent, frames, strict=True):
            block, row = divmod(first, self._moments)
            if count == 0 or row + count > self._moments or not self._may_refer(key, block):
                raise WireError("moments_beyond_block")
            values = read_frame(frame, count * self._row, "moments")
            slot = self._slot(key, block, common)
            new = ~self._here[slot, row : row + count]  # a frame that was sent again may hold anything by now
            shape = (count, *self._column.shape[2:])
            self._column[slot, row : row + count][new] = np.frombuffer(values, self._column.dtype).reshape(shape)[new]
            self._here[slot, row : row + count] = True
        return common

    def rows(self, key: Key, moment: NDArray, records: Records, layout: Layout) -> NDArray[np.int64] | None:
        """The rows [slots * M] that segments refer to; None if one of them has not come."""
        used = observed_rows(records, layout)
        place, there = self._commons[key].rows(moment, records["stream"])
        row: NDArray[np.int64] = place[used] // self._column.shape[2]
        return row if there[used].all() and self._here.reshape(-1)[row].all() else None

    def lend(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        slots = np.unique(rows // self._moments)
        self._lent[slots] += 1
        return slots

    def give_back(self, slots: NDArray[np.int64]) -> None:
        self._lent[slots] -= 1
        if (self._lent[slots] == 0).any():
            for key in list(self._slots):
                self._forget(key)

    def living(self, actors: Set[Key]) -> None:
        for key in [key for key in self._slots if key not in actors]:
            self._alive[key] = []
            self._forget(key)

    def _may_refer(self, key: Key, block: int) -> bool:
        return any(first <= block <= last for first, last in self._alive[key])

    def _slot(self, key: Key, block: int, common: SharedObs) -> int:
        slot = self._slots[key].get(block)
        if slot is None:
            if not self._free:
                raise WireError("moments_of_too_many_blocks", limit=self.ring.slots)
            slot = self._slots[key][block] = self._free.pop(0)
            record = self.ring.table[slot : slot + 1]
            record["stream"], record["number"], record["state"] = common.writer, block + 1, FINISHED
            self._here[slot] = False
        return slot

    def _forget(self, key: Key) -> None:
        """Frees the blocks of an actor that nobody will refer to."""
        known = self._slots[key]
        for block in [b for b, slot in known.items() if not self._lent[slot] and not self._may_refer(key, b)]:
            slot = known.pop(block)
            self.ring.table["number"][slot] = 0
            self._free.append(slot)
