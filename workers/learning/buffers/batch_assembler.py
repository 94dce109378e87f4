"""From ring to update, on policy: each segment is copied once into the next batch, then acknowledged. An auxiliary's
batch has observations alone.

Legend: `B` segments of a batch, `T` segment length, `K` entries of the side table, `n` segments copied at once, `P`
numbers that only learners see. Actions are as in workers/policies/action_encoding.py: `H` heads with `C` values, `D`
continuous dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.experience.layout import Field, Layout
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import LUMP, RECORD, Place, place_of
from protocol.experience.validation import observed_rows
from protocol.memory.counters import Counters
from protocol.weights.version import Version, lag, pack
from workers.algorithms.common.batches import ObservationBatch, SegmentBatch
from workers.learning.buffers.device_transfer import DeviceTransfer
from workers.learning.buffers.segment_check import LARGEST, Fault, SegmentCheck
from workers.learning.diagnostics.refused_batches import Origin
from workers.learning.source import SegmentSource, drain
from workers.policies.interface import Interface
from workers.policies.observation_encoding import ObservationEncoding
from workers.runtime.state_capture import State

__all__ = ["BatchAssembler", "ObservationAssembler"]

_SCALARS = ("reward", "terminated", "truncated", "log_probability", "value")
_PER_STEP = ("action", "amount", "legal", *_SCALARS)
_ELSE = ("state", "privileged", "final_privileged")


class BatchAssembler:
    """A pre-allocated batch that fills up. Memory is pinned where a GPU reads it. Segments with a row more than
    `max_lag` versions old are dropped, unless they were made with the newest weights that are seen to be in use.
    Segments with numbers larger than `largest`, or otherwise unfit, are left out once there is a whole batch.
    `privileged`: what a central critic sees."""

    def __init__(
        self,
        policy: str,
        interface: Interface,
        layout: Layout,
        segments: int,
        source: SegmentSource,
        counters: Counters,
        device: torch.device,
        max_lag: int | None = None,
        privileged: ObservationEncoding | None = None,
        largest: float = LARGEST,
    ) -> None:
        self._max_lag, self._in_use, self._newest, self._privileged = max_lag, np.uint64(0), np.uint64(0), privileged
        self._policy, self._source, self._counters = policy, source, counters
        self._carrier = DeviceTransfer(device)
        self._layout, self._length, self._capacity = layout, layout.length, segments
        self._check = SegmentCheck(policy, layout, largest, counters, source)
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, NDArray] = {}
        self._shown, self._actions, self._many = (
            interface.observation_encoding,
            interface.action_encoding,
            interface.place.many,
        )
        fields = {field.name: field for field in layout.fields}
        self._as_they_are = [name for name in (*_SCALARS, "final_row", "state") if name in fields]
        """Columns that are copied into the array of the same name."""
        self._as_they_are += ["observation"] if self._shown.is_identity else []
        self._as_they_are += ["action"] if self._actions.plain else []
        self._needs_conversion = not (self._shown.is_identity and self._actions.plain) or self._actions.masked
        """Whether anything is made of several columns."""
        for name, (shape, kind) in self._shapes(segments, fields).items():
            tensor = self._carrier.pin(torch.from_numpy(np.zeros(shape, kind)))
            self._tensors[name], self._arrays[name] = tensor, tensor.numpy()
        self._tensors["valid"] = self._carrier.pin(torch.zeros(segments, dtype=torch.int64))
        self._valid = self._tensors["valid"].numpy()
        self._all_fit = self._check.watch(self._arrays)
        self._records, self._actors = np.zeros(segments, RECORD), [("", 0)] * segments
        self._lumps = self._records.view(LUMP)
        self._batch = self._segments(self._tensors) if device.type == "cpu" else None
        """Where the memory that fills up is what an update reads, its views are made once."""
        self._sent: dict[str, torch.Tensor] | None = None
        """A full batch that is on its way to the device."""
        self._taken: tuple[NDArray[np.void], list[tuple[str, int]]] | None = None
        """Records and actors of the batch that was taken, where the next one is assembled meanwhile."""
        self.count = self._judged = 0
        """Segments there are, and how many of them are known to be fit."""

    @property
    def full(self) -> bool:
        """Whether there is a whole batch."""
        return self.count == self._capacity

    def fill(self, now: Version) -> bool:
        """Copies what has arrived until the batch is full; True if it is. `now` is the policy's newest version."""
        arrivals = self._source.arrivals(self._policy)
        self._newest = np.uint64(pack(now))
        if self._max_lag is not None:
            seen = (one.records["version_max"] for one in arrivals)
            self._in_use = max([self._in_use, *(one[one <= self._newest].max(initial=0) for one in seen)])

        def copy(arrival: Arrival, chunk: NDArray[np.void]) -> None:
            made = self._made(arrival, chunk, now)
            fresh = made if self._max_lag is None else self._fresh(made, now, self._max_lag)
            if len(fresh):
                self._copy(arrival, fresh, now)

        drain(self._source, self._policy, lambda: self._capacity - self.count, copy)
        while self.full and self._judged < self.count:
            new = slice(self._judged, self.count)
            stored = self._arrays, self._valid, self._records, self._actors
            self._judged = self.count = _fit(self._check, self._all_fit, new, *stored)
            drain(self._source, self._policy, lambda: self._capacity - self.count, copy)
        self._counters.set(f"held.{self._policy}", self.count)
        if self.full:
            self._source.flush_acks()
        return self.full

    def take_batch(self) -> SegmentBatch:
        """The full batch on the device; the stage is empty afterwards and its memory reused by the next `fill`."""
        self.count = self._judged = 0
        self._taken = None
        if self._batch is not None:
            return self._batch
        sent, self._sent = self._sent or self._carrier.send(self._tensors), None
        self._carrier.synchronize(sent)
        return self._segments(sent)

    def prepare(self, now: Version) -> None:
        """While the batch that was taken is trained on beside the host: the next one from what has arrived, on its way
        to the device once it is whole. Where an update reads the memory that fills up, nothing."""
        if not self._carrier.overlaps or self._sent is not None:
            return
        if self._taken is None:
            self._taken = self._records.copy(), [*self._actors]
        if self.fill(now):
            self._sent = self._carrier.send(self._tensors)

    def empty(self) -> SegmentBatch:
        """A batch like any other, in which nothing is real; what waits stays."""
        sent = self._carrier.send(self._tensors)
        self._carrier.synchronize(sent)
        batch = self._segments(sent)
        return replace(batch, valid=torch.zeros_like(batch.valid))

    def get_state(self) -> State:
        """What waits for the batch to be full, as plain arrays."""
        held = {f"array.{name}": array[: self.count].copy() for name, array in self._arrays.items()}
        held["valid"] = self._valid[: self.count].copy()
        held["records"] = self._records[: self.count].copy().view(np.uint8)
        held["actors"] = np.frombuffer(json.dumps(self._actors[: self.count]).encode(), np.uint8)
        return {**held, "in_use": np.array([self._in_use], np.uint64)}

    def set_state(self, state: State) -> None:
        """The inverse, before anything is copied."""
        self.count = count = len(state["valid"])
        for name, array in self._arrays.items():
            array[:count] = state[f"array.{name}"]
        self._valid[:count] = state["valid"]
        self._records[:count] = state["records"].view(RECORD)
        self._actors[:count] = [(str(name), int(one)) for name, one in json.loads(state["actors"].tobytes())]
        self._in_use = state["in_use"][0]

    def provenance(self) -> list[Origin]:
        """Where each segment of the batch that was taken last came from; to be asked before the next `fill`, except by
        `prepare`."""
        records, actors = self._taken or (self._records, self._actors)
        return [Origin.of(actor, record) for actor, record in zip(actors, records, strict=True)]

    def _shapes(self, segments: int, fields: Mapping[str, Field]) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and dtype of every array of a batch."""
        rows, ends = (segments, self._layout.rows), fields["final_row"].shape
        actions, shown = self._actions, self._shown
        forms: dict[str, tuple[tuple[int, ...], Any]] = {
            name: (rows, np.dtype(fields[name].dtype)) for name in _SCALARS if name in fields
        }
        forms["observation"] = (*rows, *shown.shape), shown.dtype
        forms["final_observation"] = (segments, *ends, *shown.shape), shown.dtype
        forms["final_row"] = (segments, *ends), np.int64  # as an index is needed
        forms["action"] = rows if actions.single else (*rows, len(actions.head_sizes)), np.int64
        if actions.continuous:
            forms["amount"] = (*rows, actions.continuous), np.float32
        if actions.masked:
            forms["legal"] = (*rows, sum(actions.head_sizes)), np.bool_
        if self._privileged is not None:
            forms["privileged"] = (*rows, self._privileged.width), np.float32
            forms["final_privileged"] = (segments, *ends, self._privileged.width), np.float32
        if "state" in fields:
            forms["state"] = (segments, *fields["state"].shape), np.float32
        return forms

    def _segments(self, tensors: Mapping[str, torch.Tensor]) -> SegmentBatch:
        acted = {name: tensors[name][:, : self._length] for name in _PER_STEP if name in tensors}
        return SegmentBatch(
            observation=tensors["observation"],
            valid=tensors["valid"],
            final_observation=tensors["final_observation"],
            final_row=tensors["final_row"],
            **{name: tensors[name] for name in _ELSE if name in tensors},
            **acted,
        )

    def _copy(self, arrival: Arrival, records: NDArray[np.void], now: Version) -> None:
        self._carrier.wait()
        n, at = len(records), self.count
        source = place_of(records["slot"])
        mixed = records["version_min"] != records["version_max"]  # whose rows have to be looked at
        columns = arrival.ring.columns
        with arrival.ring.reading():
            for name in self._as_they_are:
                if isinstance(source, slice) or name == "final_row":
                    self._arrays[name][at : at + n] = columns[name][source]
                else:
                    np.take(columns[name], source, axis=0, out=self._arrays[name][at : at + n])
            if self._shown.is_identity:  # the side table is as large as all rows, and of it little is in use
                ended, entry = np.nonzero(self._arrays["final_row"][at : at + n] >= 0)
                final = columns["final_observation"][records["slot"][ended], entry]
                self._arrays["final_observation"][at + ended, entry] = final
            versions = columns["version"][records["slot"][mixed], : self._length] if np.count_nonzero(mixed) else None
            there = self._read(arrival, records, source, slice(at, at + n)) if self._needs_conversion else None
            intact = arrival.ring.intact(records)
        if there is not None:
            intact &= there
        if np.count_nonzero(intact) < n:
            versions = None if versions is None else versions[intact[mixed]]
            self._compact(at, n, intact)
            torn = n - int(intact.sum())
            self._counters.add(f"torn.{self._policy}", torn)
            self._counters.add(f"dropped.recycled.{self._policy}", torn)
            n -= torn
            records, mixed = records[intact], mixed[intact]
        self._counters.add(f"received.{self._policy}", n)
        faults = None if versions is None else self._check.row_versions(versions, records[mixed], now)
        if faults:
            made = ~self._check.refuse(_among(mixed, faults), records, [(arrival.actor, arrival.incarnation)] * n)
            self._compact(at, n, made)
            assert versions is not None
            versions, records, n = versions[made[mixed]], records[made], int(made.sum())
        valid = self._valid[at : at + n]
        valid[:] = records["valid"]
        self._lumps[at : at + n] = records.view(LUMP)
        self._actors[at : at + n] = [(arrival.actor, arrival.incarnation)] * n
        rows = int(valid.sum())
        self._count_lag(records, valid, rows, versions, now)
        self.count += n
        self._counters.add(f"rows_received.{self._policy}", rows)

    def _made(self, arrival: Arrival, records: NDArray[np.void], now: Version) -> NDArray[np.void]:
        """Those of segments [n] that weights can have made which are published; the others are received and refused."""
        if not np.count_nonzero(records["version_max"] > self._newest):
            return records
        faults = self._check.versions(records, now)
        unfit = self._check.refuse(faults, records, [(arrival.actor, arrival.incarnation)] * len(records))
        self._counters.add(f"received.{self._policy}", int(unfit.sum()))
        return records[~unfit]

    def _fresh(self, records: NDArray[np.void], now: Version, most: int) -> NDArray[np.void]:
        """Those of segments [n] whose oldest row is at most `most` versions old, or whose newest was made with the
        newest weights in use, by all that has arrived: were these refused too, nothing might ever be accepted again."""
        fresh = (lag(now, records["version_min"]) <= most) | (records["version_max"] >= self._in_use)
        self._counters.add(f"dropped.stale.{self._policy}", len(records) - int(fresh.sum()))
        return records[fresh]

    def _read(self, arrival: Arrival, records: NDArray[np.void], source: Place, to: slice) -> NDArray[np.bool_]:
        """Fills places `to` of what is made of several columns; [n]: whether all common observations were there."""
        columns = arrival.ring.columns
        arrays = {name: array[to] for name, array in self._arrays.items()}

        def pick(name: str) -> NDArray:
            return columns[name][source]

        if not self._actions.plain:
            lead = arrays["action"].shape[:2]
            arrays["action"][...] = self._actions.encode_choices(pick, lead)
            if self._actions.continuous:
                arrays["amount"][...] = self._actions.amount(pick, lead)
        if self._actions.masked:
            arrays["legal"][...] = self._actions.legal(pick, arrays["legal"].shape[:2])
        if self._privileged is not None:
            self._privileged.write(pick, arrays["privileged"])
            self._privileged.write(lambda name: pick(f"final_{name}"), arrays["final_privileged"])
        if self._shown.is_identity:
            return np.ones(len(records), np.bool_)
        found = np.ones(arrays["observation"].shape[:2], np.bool_)
        if arrival.common is not None:
            place, found = arrival.common.rows(columns["moment"][source], records["stream"] // self._many)

        def seen(name: str) -> NDArray:
            if name != "common":
                return pick(name)
            assert arrival.common is not None
            return arrival.common.values[place]

        self._shown.write(seen, arrays["observation"])
        self._shown.write(lambda name: pick(f"final_{name}"), arrays["final_observation"])
        arrays["observation"][~found] = np.nan
        return np.asarray((found | ~observed_rows(records, self._layout)).all(1))

    def _compact(self, at: int, n: int, intact: NDArray[np.bool_]) -> None:
        _keep(self._arrays.values(), slice(at, at + n), intact)

    def _count_lag(
        self,
        records: NDArray[np.void],
        valid: NDArray[np.int64],
        rows: int,
        mixed: NDArray[np.uint64] | None,
        now: Version,
    ) -> None:
        """Of the `rows` rows of segments [n], `valid` each; `mixed` [m, T] are the versions of those that have more
        than one."""
        if rows == 0:
            return
        lags = lag(now, records["version_min"])
        total = lags * valid  # the oldest version has the largest lag
        if mixed is not None:
            which = records["version_min"] != records["version_max"]
            real = np.arange(self._length) < valid[which, None]
            total[which] = np.where(real, lag(now, mixed), 0).sum(1)
        most = max(self._counters[f"lag_max.{self._policy}"], int(lags.max()))
        self._counters.add(f"lag_rows.{self._policy}", rows)
        self._counters.add(f"lag_sum.{self._policy}", int(total.sum()))
        self._counters.set(f"lag_max.{self._policy}", most)


_COLUMNS = ("observation", "final_observation", "final_row")


class ObservationAssembler:
    """A pre-allocated batch of `segments` segments that fills up. Memory is pinned where a GPU reads it."""

    def __init__(
        self,
        name: str,
        layout: Layout,
        segments: int,
        source: SegmentSource,
        counters: Counters,
        device: torch.device,
        largest: float = LARGEST,
    ) -> None:
        self._name, self._source, self._counters, self._carrier = name, source, counters, DeviceTransfer(device)
        self._capacity, self._check = segments, SegmentCheck(name, layout, largest, counters, source)
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, NDArray] = {}
        for field in layout.fields:
            kind = np.int64 if field.name == "final_row" else np.dtype(field.dtype)
            tensor = self._carrier.pin(torch.from_numpy(np.zeros(layout.shape(field, segments), kind)))
            self._tensors[field.name], self._arrays[field.name] = tensor, tensor.numpy()
        self._tensors["valid"] = self._carrier.pin(torch.zeros(segments, dtype=torch.int64))
        self._valid = self._tensors["valid"].numpy()
        self._all_fit = self._check.watch(self._arrays)
        self._records, self._actors = np.zeros(segments, RECORD), [("", 0)] * segments
        self.count = self._judged = 0

    def fill(self, now: Version) -> bool:
        """Copies what has arrived until the batch is full; True if it is. What was seen does not grow old: `now`
        decides nothing."""
        drain(self._source, self._name, lambda: self._capacity - self.count, self._copy)
        while self._judged < self.count == self._capacity:
            new = slice(self._judged, self.count)
            stored = self._arrays, self._valid, self._records, self._actors
            self._judged = self.count = _fit(self._check, self._all_fit, new, *stored)
            drain(self._source, self._name, lambda: self._capacity - self.count, self._copy)
        self._counters.set(f"held.{self._name}", self.count)
        full = self.count == self._capacity
        if full:
            self._source.flush_acks()
        return full

    def take_batch(self) -> ObservationBatch:
        """The full batch on the device; empty afterwards, and its memory reused by the next `fill`."""
        self.count = self._judged = 0
        sent = self._carrier.send(self._tensors)
        self._carrier.synchronize(sent)
        return ObservationBatch(**sent)

    def provenance(self) -> list[Origin]:
        """Where each segment of the batch that was taken last came from; to be asked before the next `fill`."""
        return [Origin.of(actor, record) for actor, record in zip(self._actors, self._records, strict=True)]

    def _copy(self, arrival: Arrival, records: NDArray[np.void]) -> None:
        self._carrier.wait()
        source, at = place_of(records["slot"]), self.count
        with arrival.ring.reading():
            for name in _COLUMNS:
                self._arrays[name][at : at + len(records)] = arrival.ring.columns[name][source]
            intact = arrival.ring.intact(records)
        if not intact.all():
            torn = len(records) - int(intact.sum())
            _keep(self._arrays.values(), slice(at, at + len(records)), intact)
            self._counters.add(f"torn.{self._name}", torn)
            self._counters.add(f"dropped.recycled.{self._name}", torn)
            records = records[intact]
        n = len(records)
        self._valid[at : at + n] = records["valid"]
        self._records[at : at + n] = records
        self._actors[at : at + n] = [(arrival.actor, arrival.incarnation)] * n
        self.count += n
        self._counters.add(f"received.{self._name}", n)
        self._counters.add(f"rows_received.{self._name}", int(records["valid"].sum()))


def _fit(
    check: SegmentCheck,
    all_fit: Callable[[], bool],
    new: slice,
    arrays: Mapping[str, NDArray],
    valid: NDArray[np.int64],
    records: NDArray[np.void],
    actors: list[tuple[str, int]],
) -> int:
    """Leaves those of the segments in places `new` out that nothing can be learned from; where the others end.
    `all_fit`: whether a whole batch is, which is cheap to ask."""
    if new.start == 0 and all_fit():
        return int(new.stop)
    faults = check.numbers({name: array[new] for name, array in arrays.items()}, records[new])
    if not faults:
        return int(new.stop)
    fit = ~check.refuse(faults, records[new], actors[new])
    _keep([*arrays.values(), valid, records], new, fit)
    left = [actor for actor, kept in zip(actors[new], fit, strict=True) if kept]
    end: int = new.start + len(left)
    actors[new.start : end] = left
    return end


def _keep(arrays: Iterable[NDArray], places: slice, kept: NDArray[np.bool_]) -> None:
    """Moves what is `kept` of `places` to their beginning."""
    for array in arrays:
        some = array[places][kept]
        array[places.start : places.start + len(some)] = some


def _among(mixed: NDArray[np.bool_], faults: Sequence[Fault]) -> list[Fault]:
    """Faults of those segments that are `mixed` [n], as faults of all."""
    found = []
    for fault, wrong in faults:
        of_all = np.zeros(len(mixed), np.bool_)
        of_all[mixed] = wrong
        found.append((fault, of_all))
    return found
