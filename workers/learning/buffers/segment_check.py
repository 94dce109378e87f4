"""Which segments nothing can be learned from, whoever sent them and whichever way they came: with one of them in a
batch its loss might not be finite. They are left out, one by one, and the others are trained on.

In flow: columns of segments, and their records. Out flow: which to leave out; a line in the log that names the actor.
Legend: `n` segments, `R` rows of a slot, `T` of a segment, `m` segments looked at closely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.experience.layout import Layout
from protocol.experience.ring_buffer import Records
from protocol.experience.validation import observed_rows
from protocol.memory.shared_file import Counters
from protocol.refusal_log import RefusalLog
from protocol.weights.manifest import Version, pack, unpack
from workers.learning.source import SegmentSource
from workers.metrics.diagnostics import counter

LARGEST = 1e12
"""Of numbers in segments, unless something else is said: sums over rows of the squares of their returns are finite."""
_HOST = torch.device("cpu")
_MOST, _STEPS = 1e18, 1e4
"""Of any number, and how many rewards a value may be the sum of: else an honest actor's would be too large as soon as
rewards of others were learned that are not."""

Fault = tuple[WireError, NDArray[np.bool_]]
"""What is wrong, and with which segments [n]."""
_SEEN = ("observation", "privileged")
"""What is there after the last row, too."""


@dataclass(frozen=True, slots=True)
class BufferContext:
    """Where a buffer of a policy's segments gets them from and sends batches to. No number in a segment may be larger
    than `largest`, at most 1e18."""

    policy: str
    layout: Layout
    source: SegmentSource
    counters: Counters
    device: torch.device = _HOST
    largest: float = LARGEST


class SegmentCheck:
    """Of one policy's segments; the source tells actors what was rejected."""

    def __init__(self, context: BufferContext) -> None:
        self._policy, self._layout, self._source = context.policy, context.layout, context.source
        self._largest, self._counters = context.largest, context.counters
        self._rows = slice(self._layout.before, self._layout.before + self._layout.length)
        self._log = RefusalLog()

    def numbers(self, columns: Mapping[str, NDArray], records: Records) -> list[Fault]:
        """What is wrong with the content of segments [n], by `columns` [n, ...], which nobody else may write to.

        The sum of the squares of a segment's numbers tells that all are small enough; only where it does not are they
        looked at one by one.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            found = [*self._large(columns, records), *self._large_finals(columns)]
        return found + self._cut_blindly(columns, records)

    def watch(self, columns: Mapping[str, NDArray]) -> Callable[[], bool]:
        """What tells of `columns` [n, ...], which stay where they are, that none of `numbers` can be wrong with them,
        in a microsecond or two each; False where more has to be looked at."""
        rows = {name: self._meant(name, column) for name, column in columns.items() if column.dtype.kind == "f"}
        flat = [column.reshape(len(column), -1) for name, column in rows.items() if not name.startswith("final_")]
        meant = [column for name, column in rows.items() if not name.startswith("final_")]
        aside = any(not np.may_share_memory(*pair) for pair in zip(meant, flat, strict=True) if pair[0].size)
        if aside or any(column.dtype.itemsize < 4 for column in flat):
            return lambda: False
        pairs = [(column[:, None, :], column[:, :, None]) for column in flat]
        cut = columns["truncated"][:, self._rows] if "truncated" in columns else np.zeros(0, np.bool_)
        limit, final_row = self._largest**2, columns["final_row"]

        def fit() -> bool:
            if np.count_nonzero(final_row >= 0) or np.count_nonzero(cut):
                return False
            with np.errstate(invalid="ignore", over="ignore"):
                squares = sum(np.matmul(left, right) for left, right in pairs)
                return bool(np.max(squares) < limit)

        return fit

    def versions(self, records: Records, now: Version) -> list[Fault]:
        """Those of segments [n] that say that they were made by weights beyond `now`, the newest of their policy."""
        future = np.asarray(records["version_max"] > np.uint64(pack(now)))
        return [(_unpublished(now, records["version_max"]), future)] if future.any() else []

    def row_versions(self, versions: NDArray[np.uint64], records: Records, now: Version) -> list[Fault]:
        """The same of their rows [n, T], and those whose oldest version is beyond their newest."""
        future = ((versions > np.uint64(pack(now))) & self._valid(records)).any(1)
        reversed_ = records["version_min"] > records["version_max"]
        wrong = (
            (_unpublished(now, versions[self._valid(records)]), future),
            (WireError("segment_versions_reversed"), reversed_),
        )
        return [(fault, np.asarray(which)) for fault, which in wrong if which.any()]

    def refuse(self, faults: Sequence[Fault], records: Records, actors: Sequence[tuple[str, int]]) -> NDArray[np.bool_]:
        """[n]: which of the segments of `actors` [n] have faults; they are counted as rejected, and the log says whose
        they were."""
        unfit = np.zeros(len(records), np.bool_)
        for fault, wrong in faults:
            unfit |= wrong
            for i in np.flatnonzero(wrong).tolist():
                actor, incarnation = actors[i]
                self._source.refuse(self._policy, actors[i], fault)
                self._log.tell(
                    *("segments_refused", fault.kind, fault.coded),
                    policy=self._policy,
                    actor=actor,
                    incarnation=incarnation,
                )
        count = int(unfit.sum())
        self._counters.add(f"rejected.{self._policy}", count)
        self._counters.add(counter("segments_refused", self._policy), count)
        return unfit

    def _large(self, columns: Mapping[str, NDArray], records: Records) -> Iterator[Fault]:
        for name, column in columns.items():
            if column.dtype.kind != "f" or name.startswith("final_"):
                continue
            what, values = name.partition(".")[0], self._meant(name, column)
            doubtful = np.flatnonzero(~(_squares(values) < self._largest**2))
            if not len(doubtful):
                continue
            some = records[doubtful]
            if what == "state":
                real = np.ones((len(some), 1), np.bool_)
            else:
                real = observed_rows(some, self._layout) if what in _SEEN else self._valid(some)
            yield from self._beyond(name, values[doubtful], real, doubtful, len(records))

    def _meant(self, name: str, column: NDArray) -> NDArray:
        """Without rows in which the field says nothing."""
        whole = name.startswith("final_") or name.partition(".")[0] in (*_SEEN, "state")
        return column if whole else column[:, self._rows]

    def _large_finals(self, columns: Mapping[str, NDArray]) -> Iterator[Fault]:
        """The same in the side table, of which little is in use."""
        names = [name for name, column in columns.items() if name.startswith("final_") and column.dtype.kind == "f"]
        if not names:
            return
        final_row = columns["final_row"]
        segment, entry = np.nonzero(final_row >= 0)
        for name in names if len(segment) else ():
            values = columns[name][segment, entry]
            doubtful = np.flatnonzero(~(_squares(values) < self._largest**2))
            if len(doubtful):
                real = np.ones((len(doubtful), 1), np.bool_)
                yield from self._beyond(name, values[doubtful], real, segment[doubtful], len(final_row))

    def _beyond(
        self, name: str, values: NDArray, real: NDArray[np.bool_], segment: NDArray[np.int64], n: int
    ) -> Iterator[Fault]:
        """Of `values` [m, ...] of segments `segment` [m] those that are `real` [m, ...]."""
        values = values.reshape(*real.shape, -1)
        finite = np.isfinite(values)
        infinite = (~finite & real[..., None]).any((1, 2))
        limit = min(_MOST, _STEPS * self._largest) if name == "value" else self._largest
        size = np.where(finite & real[..., None], np.abs(values), 0)
        large = (size > limit).any((1, 2))
        for fault, wrong in (
            (WireError("segment_field_not_finite", field=name), infinite),
            (WireError("segment_field_too_large", field=name, value=float(size.max()), limit=limit), large),
        ):
            if wrong.any():
                yield fault, np.isin(np.arange(n), segment[wrong])

    def _cut_blindly(self, columns: Mapping[str, NDArray], records: Records) -> list[Fault]:
        """Each truncated row needs what was seen last: its value is what is learned from."""
        if "truncated" not in columns or not np.count_nonzero(columns["truncated"][:, self._rows]):
            return []
        cut = columns["truncated"][:, self._rows] & ~columns["terminated"][:, self._rows] & self._valid(records)
        final_row = columns["final_row"]
        segment, entry = np.nonzero((final_row >= 0) & (final_row < self._layout.length))
        cut[segment, final_row[segment, entry]] = False
        return [(WireError("segment_last_observation_missing"), np.asarray(cut.any(1)))] if cut.any() else []

    def _valid(self, records: Records) -> NDArray[np.bool_]:
        """[n, T]: rows that are real."""
        return np.asarray(np.arange(self._layout.length) < records["valid"][:, None])


def _squares(values: NDArray) -> NDArray:
    """[n]: at least the square of the largest number of each of `values` [n, ...], or no number: as fast as memory is
    read, where a look at each number takes several times as long."""
    flat = values.reshape(len(values), -1)
    if flat.dtype.itemsize < 4:
        flat = flat.astype(np.float32)
    return np.matmul(flat[:, None, :], flat[:, :, None])[:, 0, 0]


def _unpublished(now: Version, told: NDArray[np.uint64]) -> WireError:
    value = unpack(int(told.max(initial=0)))
    said = {"value": f"{value.incarnation}.{value.version}", "limit": f"{now.incarnation}.{now.version}"}
    return WireError("segment_version_not_published", **said)
