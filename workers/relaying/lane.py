"""One policy's segments in a relay: from the frames that brought them into a pool, and by header to the learner.

In flows: checked messages, acknowledgements, who lives. Out flow: headers over a `Link`. A slot is used again when the
learner has acknowledged what lies in it; in replay when the actor's own ring would have used its own one again.
Legend: `n` segments of a message, which stay together as a block.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.acknowledgements import Key
from protocol.compression import unpacked
from protocol.counters import Counters
from protocol.errors import WireError
from protocol.intake import check_actions, read_columns, read_records
from protocol.messages import Ack, Segments
from protocol.pool import Pool
from workers.plan import PolicyPlan
from workers.relaying.link import Link

__all__ = ["Lane"]

_REFUSED_AFTER = 5.0
"""Seconds, five acknowledgements, after which a learner that has not mentioned a segment does not want it."""


@dataclass(slots=True)
class _Block:
    """How a message is announced and where its segments lie."""

    header: Segments
    records: NDArray[np.void]
    at: float


@dataclass(slots=True)
class _Line:
    """What came from one actor incarnation."""

    settled: int = 0
    heard: int = 0
    """The highest number that the learner said it knows."""
    heard_at: float = 0.0
    held: dict[int, _Block] = field(default_factory=dict)
    """Announced and not settled, by last number."""
    kept: deque[NDArray[np.uint32]] = field(default_factory=deque)
    """Slots of what is settled and may be sampled, oldest first."""


class Lane:
    """`path`: where the pool lies, which is made when the first segments come."""

    def __init__(self, plan: PolicyPlan, path: Path, link: Link, counters: Counters) -> None:
        self.link = link
        """To the learner."""
        self._plan, self._counters = plan, counters
        self._pool = Pool(plan.layout, plan.pool_slots, path, plan.config.checksums)
        self._lines: dict[Key, _Line] = {}
        self._parked: dict[tuple[Key, int], tuple[Segments, Sequence[Any]]] = {}
        """What waits for room, by actor and last number, oldest first."""
        self._living: Set[Key] = frozenset()

    def move(self, link: Link) -> None:
        """The learner is elsewhere now: it is told of everything that is not settled."""
        self.link = link
        for key, line in self._lines.items():
            link.listen(self._plan.name, key)
            line.heard, line.heard_at = 0, 0.0
            for last in sorted(line.held):
                self._announce(line.held[last], line.held[last].header.after, True)

    def take(self, header: Segments, frames: Sequence[Any]) -> int:
        """Copies a message to the pool and announces it; where there is no room it waits. What is known is announced
        once more, what is settled is not. Returns the bytes copied; WireError if the message breaks a rule."""
        records = self._check(header, frames)
        key, last = (header.actor, header.incarnation), int(records["number"][-1])
        line = self._line(key)
        known = line.held.get(last)
        if known is not None or last <= line.settled or (key, last) in self._parked:
            self._counters.add(f"repeated.{self._plan.name}", len(records))
            if known is not None:
                self._announce(known, header.after, True)
            return 0
        if self._parked or not self._has_room(len(records)):
            self._park(key, last, header, frames)
            return 0
        return self._store(line, records, header, frames)

    def retry(self) -> int:
        """Takes what waited for room, as far as there is some now; the bytes copied."""
        copied = 0
        for (key, last), (header, frames) in list(self._parked.items()):
            if not self._has_room(header.count):
                break
            del self._parked[key, last]
            copied += self._store(self._line(key), self._check(header, frames), header, frames)
        return copied

    def settle(self, ack: Ack) -> None:
        """The learner has all segments of an actor incarnation up to a number."""
        line = self._lines.get((ack.actor, ack.incarnation))
        if line is None:
            return
        line.settled = max(line.settled, ack.settled)
        line.heard, line.heard_at = ack.announced, time.monotonic()
        for last in sorted(last for last in line.held if last <= line.settled):
            slots = line.held.pop(last).records["slot"]
            self._counters.add(f"held.{self._plan.name}", -len(slots))
            line.kept.append(slots)
        while len(line.kept) > self._plan.kept_blocks:
            self._pool.give_back(line.kept.popleft())

    def living(self, actors: Set[Key]) -> None:
        """Who is a member now. A dead actor repeats nothing: what its learner refused is given up."""
        self._living = actors
        now = time.monotonic()
        for key in [key for key in self._lines if key not in actors]:
            line = self._lines[key]
            for last, block in list(line.held.items()):
                if last > line.heard and min(now, line.heard_at) - block.at > _REFUSED_AFTER:
                    self._pool.give_back(line.held.pop(last).records["slot"])
                    self._counters.add(f"held.{self._plan.name}", -len(block.records))
                    self._counters.add(f"refused.{self._plan.name}", len(block.records))
            if not line.held and not line.kept:
                self.link.ignore(self._plan.name, key)
                del self._lines[key]

    def close(self) -> None:
        """Lets go of the pool."""
        self._parked.clear()
        self._pool.close()

    def _check(self, header: Segments, frames: Sequence[Any]) -> NDArray[np.void]:
        layout = self._plan.layout
        if header.layout != layout.hash:
            raise WireError(f"segments of layout {header.layout}, expected {layout.hash}; use the same configuration")
        if not header.inline:
            raise WireError(f"segments in the memory of {header.actor}, which is on another node; send the columns")
        if len(frames) != 1 + len(layout.fields) or header.count > self._pool.slots:
            raise WireError(
                f"{len(frames)} frames for {header.count} segments, expected {1 + len(layout.fields)} for at most "
                f"{self._pool.slots}; use the same configuration and release"
            )
        return read_records(frames[0], header.count, layout)

    def _line(self, key: Key) -> _Line:
        if key not in self._lines:
            self._lines[key] = _Line()
            self.link.listen(self._plan.name, key)
        return self._lines[key]

    def _store(self, line: _Line, records: NDArray[np.void], header: Segments, frames: Sequence[Any]) -> int:
        layout, count = self._plan.layout, header.count
        columns = read_columns(unpacked(frames[1:], header.compressed, count, layout), count, layout)
        check_actions(columns["action"], records, layout, self._plan.agent.action.n)
        stored = self._pool.store(records, columns)
        ring = self._pool.ring
        update = {"inline": False, "compressed": [], "ring": str(ring.path), "nonce": ring.nonce}
        block = line.held[int(records["number"][-1])] = _Block(header.model_copy(update=update), stored, 0.0)
        self._announce(block, header.after, header.resent)
        self._counters.add(f"passed.{self._plan.name}", count)
        self._counters.add(f"held.{self._plan.name}", count)
        return count * layout.segment_bytes

    def _has_room(self, n: int) -> bool:
        """Whether `n` slots are free, if need be those that a dead actor's replay still had."""
        for key, line in self._lines.items():
            while self._pool.free < n and line.kept and key not in self._living:
                self._pool.give_back(line.kept.popleft())
        return self._pool.free >= n

    def _park(self, key: Key, last: int, header: Segments, frames: Sequence[Any]) -> None:
        if sum(waiting.count for waiting, _ in self._parked.values()) + header.count > self._pool.slots:
            raise WireError(f"more segments than the pool's {self._pool.slots} wait for room; keep to the credit")
        self._parked[key, last] = (header, frames)
        self._counters.add(f"parked.{self._plan.name}", header.count)

    def _announce(self, block: _Block, after: int, resent: bool) -> None:
        block.at = time.monotonic()
        self.link.announce(block.header.model_copy(update={"after": after, "resent": resent}), block.records)
