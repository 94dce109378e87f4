"""From ring to update, on policy: each segment is copied once into the next batch, then acknowledged. An auxiliary's
batch has observations alone.

Legend: `B` segments of a batch, `T` segment length, `K` entries of the side table, `n` segments copied at once, `P`
numbers that only learners see. Actions are as in workers/policies/action_encoding.py: `H` heads with `C` values, `D`
continuous dimensions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.experience.layout import OUTPUT, Field
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import LUMP, RECORD, Place, Records, place_of
from protocol.experience.validation import observed_rows
from protocol.weights.manifest import Version, lag, pack
from workers.algorithms.common.batches import ObservationBatch, SegmentBatch
from workers.learning.buffers.device_transfer import DeviceTransfer
from workers.learning.buffers.nstep_gather import kept_outputs, stack_index
from workers.learning.buffers.segment_check import BufferContext, Fault, SegmentCheck
from workers.learning.diagnostics.refused_batches import Origin
from workers.policies.interface import Interface
from workers.policies.observation_encoding import ObservationEncoding
from workers.runtime.state_capture import State

_SCALARS = ("reward", "terminated", "truncated", "log_probability", "value")
_PER_STEP = ("action", "amount", "legal", "outputs", *_SCALARS)
_ELSE = ("state", "final_privileged", "stack")


_Batch = TypeVar("_Batch", SegmentBatch, ObservationBatch)
_Forms = Mapping[str, tuple[tuple[int, ...], Any]]
"""Shape and dtype of every array of a batch."""


class _Assembler(Generic[_Batch]):
    """A pre-allocated batch of `segments` segments in arrays of these `forms`, which fills up. Memory is pinned where a
    GPU reads it. Unfit segments are left out once there is a whole batch."""

    _shown: ObservationEncoding
    """What a policy is shown of a row"""

    def __init__(self, context: BufferContext, segments: int, forms: _Forms) -> None:
        self._policy, self._source, self._counters = context.policy, context.source, context.counters
        self._carrier = DeviceTransfer(context.device)
        self._layout, self._capacity = context.layout, segments
        self._check = SegmentCheck(context)
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, NDArray] = {}
        for name, (shape, kind) in forms.items():
            tensor = self._carrier.pin(torch.from_numpy(np.zeros(shape, kind)))
            self._tensors[name], self._arrays[name] = tensor, tensor.numpy()
        self._tensors["valid"] = self._carrier.pin(torch.zeros(segments, dtype=torch.int64))
        self._valid = self._tensors["valid"].numpy()
        self._all_fit = self._check.watch(self._checkable())
        self._records, self._actors = np.zeros(segments, RECORD), [("", 0)] * segments
        self._lumps = self._records.view(LUMP)
        self._batch: _Batch | None = self._made_of(self._tensors) if context.device.type == "cpu" else None
        """Where the memory that fills up is what an update reads, its views are made once."""
        self._sent: dict[str, torch.Tensor] | None = None
        """A full batch that is on its way to the device."""
        self._taken: tuple[Records, list[tuple[str, int]]] | None = None
        """Records and actors of the batch that was taken, where the next one is assembled meanwhile."""
        self.count = self._judged = 0
        """Segments there are, and how many of them are known to be fit."""

    def next_batch(self, now: Version, progress: float = 0.0) -> _Batch | None:
        """The full batch, if there is one; neither the version `now` nor the `progress` of the run decides anything."""
        return self.take_batch() if self.full else None

    def take_batch(self) -> _Batch:
        """The full batch on the device; the stage is empty afterwards and its memory reused by the next `fill`."""
        self.count = self._judged = 0
        self._taken = None
        if self._batch is not None:
            return self._batch
        sent, self._sent = self._sent or self._carrier.send(self._tensors), None
        self._carrier.synchronize(sent)
        return self._made_of(sent)

    @property
    def full(self) -> bool:
        """Whether there is a whole batch."""
        return self.count == self._capacity

    def fill(self, now: Version) -> bool:
        """Copies what has arrived until the batch is full; True if it is. `now` is the policy's newest version."""
        raise NotImplementedError

    def _chunks(self) -> Iterator[tuple[Arrival, Records]]:
        """What has arrived, in parts that still fit in, each of which is settled once it was copied; until the batch is
        full of what is fit, or nothing is left."""
        arrivals = self._source.arrivals(self._policy)
        while True:
            while arrivals and not self.full:
                arrival = arrivals[0]
                chunk = arrival.records[: self._capacity - self.count]
                yield arrival, chunk
                arrival.records = arrival.records[len(chunk) :]
                if arrival.owned:
                    self._source.release(self._policy, chunk["slot"])
                self._source.acknowledge(self._policy, arrival, int(chunk["number"][-1]), len(chunk))
                if len(arrival.records) == 0:
                    arrivals.popleft()
            if not self.full or self._judged == self.count:
                break
            self._judged = self.count = self._fit(slice(self._judged, self.count))
            arrivals = self._source.arrivals(self._policy)
        self._counters.set(f"held.{self._policy}", self.count)
        if self.full:
            self._source.flush_acks()

    def prepare(self, now: Version) -> None:
        """While the batch that was taken is trained on beside the host: the next one from what has arrived, on its way
        to the device once it is whole. Where an update reads the memory that fills up, nothing."""
        if not self._carrier.overlaps or self._sent is not None:
            return
        if self._taken is None:
            self._taken = self._records.copy(), [*self._actors]
        if self.fill(now):
            self._sent = self._carrier.send(self._tensors)

    def get_state(self) -> State:
        """What waits for the batch to be full, as plain arrays."""
        held = {f"array.{name}": array[: self.count].copy() for name, array in self._arrays.items()}
        held["valid"] = self._valid[: self.count].copy()
        held["records"] = self._records[: self.count].copy().view(np.uint8)
        held["actors"] = np.frombuffer(json.dumps(self._actors[: self.count]).encode(), np.uint8)
        return held

    def set_state(self, state: State) -> None:
        """The inverse, before anything is copied."""
        self.count = count = len(state["valid"])
        for name, array in self._arrays.items():
            array[:count] = state[f"array.{name}"]
        self._valid[:count] = state["valid"]
        self._records[:count] = state["records"].view(RECORD)
        self._actors[:count] = [(str(name), int(one)) for name, one in json.loads(state["actors"].tobytes())]

    def provenance(self) -> list[Origin]:
        """Where each segment of the batch that was taken last came from; to be asked before the next `fill`, except by
        `prepare`."""
        records, actors = self._taken or (self._records, self._actors)
        return [Origin.of(actor, record) for actor, record in zip(actors, records, strict=True)]

    def _made_of(self, tensors: Mapping[str, torch.Tensor]) -> _Batch:
        raise NotImplementedError

    def _checkable(self) -> Mapping[str, NDArray]:
        """Arrays by whose dtypes their numbers can be looked at."""
        return self._shown.checkable(self._arrays)

    def _whole(self, n: int, intact: NDArray[np.bool_]) -> int:
        """Counts those of the `n` segments behind the last one that were overwritten, and moves the others together;
        how many these are."""
        torn = n - int(intact.sum())
        self._compact(n, intact)
        self._counters.add(f"torn.{self._policy}", torn)
        self._counters.add(f"dropped.recycled.{self._policy}", torn)
        return n - torn

    def _compact(self, n: int, kept: NDArray[np.bool_]) -> None:
        _keep(self._arrays.values(), slice(self.count, self.count + n), kept)

    def _enter(self, arrival: Arrival, records: Records) -> NDArray[np.int64]:
        """Notes the segments whose columns were copied; their rows [n]."""
        places = slice(self.count, self.count + len(records))
        valid = self._valid[places]
        valid[:] = records["valid"]
        self._lumps[places] = records.view(LUMP)
        self._actors[places] = [(arrival.actor, arrival.incarnation)] * len(records)
        self.count = places.stop
        self._counters.add(f"rows_received.{self._policy}", int(valid.sum()))
        return valid

    def _fit(self, new: slice) -> int:
        """Leaves those of the segments in places `new` out that nothing can be learned from; where the others end."""
        if new.start == 0 and self._all_fit():  # which is cheap to ask
            return int(new.stop)
        records, actors = self._records[new], self._actors[new]
        faults = self._check.numbers({name: array[new] for name, array in self._checkable().items()}, records)
        if not faults:
            return int(new.stop)
        fit = ~self._check.refuse(faults, records, actors)
        _keep([*self._arrays.values(), self._valid, self._records], new, fit)
        left = [actor for actor, kept in zip(actors, fit, strict=True) if kept]
        end: int = new.start + len(left)
        self._actors[new.start : end] = left
        return end


class BatchAssembler(_Assembler[SegmentBatch]):
    """Of a policy. Segments with a row more than `max_lag` versions old are dropped, unless they were made with the
    newest weights that are seen to be in use. `privileged`: what a central critic sees."""

    def __init__(
        self,
        context: BufferContext,
        interface: Interface,
        segments: int,
        max_lag: int | None = None,
        privileged: ObservationEncoding | None = None,
    ) -> None:
        layout = context.layout
        self._max_lag, self._in_use, self._newest, self._privileged = max_lag, np.uint64(0), np.uint64(0), privileged
        self._length, self._before, self._many = layout.length, layout.before, interface.place.many
        self._shown, self._actions = interface.observation_encoding, interface.action_encoding
        fields = {field.name: field for field in layout.fields}
        self._as_they_are = [name for name in (*_SCALARS, "final_row", "state") if name in fields]
        """Columns that are copied into the array of the same name."""
        self._as_they_are += ["observation"] if self._shown.is_identity else []
        self._as_they_are += ["action"] if self._actions.plain else []
        self._needs_conversion = not (self._shown.is_identity and self._actions.plain) or self._actions.masked
        self._needs_conversion |= bool(layout.outputs)
        """Whether anything is made of several columns."""
        forms = self._forms(segments, layout.rows, fields)
        super().__init__(context, segments, forms)

    def empty(self) -> SegmentBatch:
        """A batch like any other, in which nothing is real; what waits stays."""
        sent = self._carrier.send(self._tensors)
        self._carrier.synchronize(sent)
        batch = self._made_of(sent)
        return replace(batch, valid=torch.zeros_like(batch.valid))

    def get_state(self) -> State:
        """What waits for the batch to be full, and the newest weights in use, as plain arrays."""
        return {**super().get_state(), "in_use": np.array([self._in_use], np.uint64)}

    def set_state(self, state: State) -> None:
        """The inverse, before anything is copied."""
        super().set_state(state)
        self._in_use = state["in_use"][0]

    def _see(self, now: Version) -> None:
        """What has arrived, before any of it is copied."""
        self._newest = np.uint64(pack(now))
        if self._max_lag is not None:
            seen = (one.records["version_max"] for one in self._source.arrivals(self._policy))
            self._in_use = max([self._in_use, *(one[one <= self._newest].max(initial=0) for one in seen)])

    def _forms(self, segments: int, length: int, fields: Mapping[str, Field]) -> _Forms:
        rows, ends = (segments, length), fields["final_row"].shape
        actions, shown = self._actions, self._shown
        forms: dict[str, tuple[tuple[int, ...], Any]] = {
            name: (rows, np.dtype(fields[name].dtype)) for name in _SCALARS if name in fields
        }
        forms["observation"] = (*rows, *shown.shape), shown.dtype
        forms["final_observation"] = (segments, *ends, *shown.shape), shown.dtype
        forms["final_row"] = (segments, *ends), np.int64  # as an index is needed
        if self._before:
            forms["stack"] = (segments, self._length + 1, self._before + 1), np.int64
        forms["action"] = rows if actions.single else (*rows, len(actions.head_sizes)), np.int64
        if actions.continuous:
            forms["amount"] = (*rows, actions.continuous), np.float32
        if actions.masked:
            forms["legal"] = (*rows, sum(actions.head_sizes)), np.bool_
        if outputs := [one for name, one in fields.items() if name.startswith(OUTPUT)]:
            forms["outputs"] = (*rows, sum(math.prod(one.shape) for one in outputs)), np.float32
        if self._privileged is not None:
            forms["privileged"] = (*rows, self._privileged.width), np.float32
            forms["final_privileged"] = (segments, *ends, self._privileged.width), np.float32
        if "state" in fields:
            forms["state"] = (segments, *fields["state"].shape), np.float32
        return forms

    def _made_of(self, tensors: Mapping[str, torch.Tensor]) -> SegmentBatch:
        since = {name: tensors[name][:, self._before :] for name in ("observation", "privileged") if name in tensors}
        end = self._before + self._length
        acted = {name: tensors[name][:, self._before : end] for name in _PER_STEP if name in tensors}
        return SegmentBatch(
            **since,
            history=tensors["observation"] if self._before else None,
            valid=tensors["valid"],
            final_observation=tensors["final_observation"],
            final_row=tensors["final_row"],
            **{name: tensors[name] for name in _ELSE if name in tensors},
            **acted,
        )

    def fill(self, now: Version) -> bool:
        """Copies what has arrived until the batch is full; True if it is. `now` is the policy's newest version."""
        if self._source.arrivals(self._policy):
            self._see(now)
        for arrival, records in self._chunks():
            records = self._made(arrival, records, now)
            if self._max_lag is not None:
                records = self._fresh(records, now, self._max_lag)
            n, at = len(records), self.count
            if n == 0:
                continue
            self._carrier.wait()
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
                versions = None
                if np.count_nonzero(mixed):
                    versions = columns["version"][records["slot"][mixed], self._before :][:, : self._length]
                there = self._read(arrival, records, source, slice(at, at + n)) if self._needs_conversion else None
                intact = arrival.ring.intact(records)
            if there is not None:
                intact &= there
            if self._before:
                self._stack(records, slice(at, at + n))
            if np.count_nonzero(intact) < n:
                versions = None if versions is None else versions[intact[mixed]]
                n = self._whole(n, intact)
                records, mixed = records[intact], mixed[intact]
            self._counters.add(f"received.{self._policy}", n)
            faults = None if versions is None else self._check.row_versions(versions, records[mixed], now)
            if faults:
                made = ~self._check.refuse(_among(mixed, faults), records, [(arrival.actor, arrival.incarnation)] * n)
                self._compact(n, made)
                assert versions is not None
                versions, records = versions[made[mixed]], records[made]
            self._count_lag(records, self._enter(arrival, records), versions, now)
        return self.full

    def _stack(self, records: Records, places: slice) -> None:
        """Of which rows the stacked frames of the segments that were copied to `places` are."""
        rows = self._before + self._length + 1
        ends = {name: self._arrays[name][places].reshape(-1) for name in ("terminated", "truncated")}
        start = np.arange(len(records))[:, None] * rows
        newest = (start + np.arange(self._before, rows)).reshape(-1)
        first = np.repeat(start[:, 0] + self._before - records["before"], self._length + 1)
        found = stack_index(newest, first, ends, self._before + 1)
        self._arrays["stack"][places] = found.reshape(len(records), -1, self._before + 1) - start[..., None]

    def _made(self, arrival: Arrival, records: Records, now: Version) -> Records:
        """Those of segments [n] that weights can have made which are published; the others are received and refused."""
        if not np.count_nonzero(records["version_max"] > self._newest):
            return records
        faults = self._check.versions(records, now)
        unfit = self._check.refuse(faults, records, [(arrival.actor, arrival.incarnation)] * len(records))
        self._counters.add(f"received.{self._policy}", int(unfit.sum()))
        return records[~unfit]

    def _fresh(self, records: Records, now: Version, most: int) -> Records:
        """Those of segments [n] whose oldest row is at most `most` versions old, or whose newest was made with the
        newest weights in use, by all that has arrived: were these refused too, nothing might ever be accepted again."""
        fresh = (lag(now, records["version_min"]) <= most) | (records["version_max"] >= self._in_use)
        self._counters.add(f"dropped.stale.{self._policy}", len(records) - int(fresh.sum()))
        return records[fresh]

    def _read(self, arrival: Arrival, records: Records, source: Place, to: slice) -> NDArray[np.bool_]:
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
        for name, column in kept_outputs(pick, self._layout, (len(records), self._layout.rows)).items():
            arrays[name][...] = column
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
        if self._shown.record is None:
            arrays["observation"][~found] = np.nan
        return np.asarray((found | ~observed_rows(records, self._layout)).all(1))

    def _count_lag(
        self,
        records: Records,
        valid: NDArray[np.int64],
        mixed: NDArray[np.uint64] | None,
        now: Version,
    ) -> None:
        """Of segments [n] with `valid` rows each; `mixed` [m, T] are the versions of those that have more than one."""
        rows = int(valid.sum())
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


class ObservationAssembler(_Assembler[ObservationBatch]):
    """Of an auxiliary. What was seen does not grow old: versions decide nothing."""

    def __init__(self, context: BufferContext, shown: ObservationEncoding, segments: int) -> None:
        layout, self._shown = context.layout, shown
        forms = {field.name: (layout.shape(field, segments), np.dtype(field.dtype)) for field in layout.fields}
        forms["final_row"] = forms["final_row"][0], np.dtype(np.int64)  # as an index is needed
        super().__init__(context, segments, forms)

    def _made_of(self, tensors: Mapping[str, torch.Tensor]) -> ObservationBatch:
        return ObservationBatch(**tensors)

    def fill(self, now: Version) -> bool:
        """Copies what has arrived until the batch is full; True if it is."""
        for arrival, records in self._chunks():
            self._carrier.wait()
            source, n = place_of(records["slot"]), len(records)
            with arrival.ring.reading():
                for name in _COLUMNS:
                    self._arrays[name][self.count : self.count + n] = arrival.ring.columns[name][source]
                intact = arrival.ring.intact(records)
            if not intact.all():
                self._whole(n, intact)
                records = records[intact]
            self._counters.add(f"received.{self._policy}", len(records))
            self._enter(arrival, records)
        return self.full


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
