"""What a learner receives, kept on disk as a dataset.

In flow: the arrivals of another source, each segment noted when it is first seen. Out flow: the same arrivals, and
files (workers/learning/datasets/dataset_manifest.py), each written aside by a thread, synced and renamed, so that it is
whole or not there. What a learner that is killed had not written yet is not in the dataset: one file at most.
"""

from __future__ import annotations

import json
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from protocol.config.run import Run
from protocol.errors import ConfigurationError, WireError
from protocol.experience.layout import Layout
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Records, place_of
from protocol.memory.shared_file import Counters
from workers.learning.datasets.dataset_manifest import ACTOR, EPISODE, FILES, MANIFEST, RECORDS, DatasetManifest
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan
from workers.runtime.files import sync

FILE_BYTES = 1 << 25
"""Of segments in a file; one segment at least."""
_FIELDS = [name.partition(".")[2] for name in RECORDS if name not in (ACTOR, EPISODE)]
_BYTES = np.array([1, 1 << 8, 1 << 16], np.uint32)
"""What the three bytes of a record's `episode` count."""


def begin(run: Run, plan: TrainingPlan, incarnation: int, folder: Path | None) -> Path:
    """Makes the folder of `plan`'s policy in the run's `folder`, with its manifest, and keeps what earlier incarnations
    of its learner recorded; ConfigurationError where that cannot be seen from here, or where there are segments of
    another run, which have the same numbers."""
    if folder is None:
        raise ConfigurationError("record_folder_not_shared", policy=plan.name, key="policy.record")
    layout = plan.layout
    manifest = DatasetManifest(
        policy=plan.name,
        world=run.environment.id,
        agent=plan.interface.place.agent,
        layout=layout.hash,
        length=layout.length,
        before=layout.before,
        fields=tuple((f.name, f.dtype, f.shape, f.per) for f in layout.fields),
        environment=run.environment.model_dump(mode="json"),
    )
    place = folder / "datasets" / plan.name
    if incarnation == 1 and any(place.glob(FILES)):
        raise ConfigurationError("record_folder_in_use", policy=plan.name, file=place, key="policy.record")
    place.mkdir(parents=True, exist_ok=True)
    for left in place.glob(".*"):
        left.unlink()
    aside = place / f".{MANIFEST}"
    aside.write_text(manifest.model_dump_json(indent=2) + "\n")
    sync(aside)
    aside.rename(place / MANIFEST)
    sync(place)
    return place


class SegmentRecorder:
    """`source`, with all segments that come from it written to `folder`. `incarnation`: the learner's."""

    def __init__(
        self, source: SegmentSource, policy: str, layout: Layout, folder: Path, incarnation: int, counters: Counters
    ) -> None:
        self._source, self._policy, self._layout, self._counters = source, policy, layout, counters
        self._folder, self._incarnation = folder, incarnation
        self._room = max(1, FILE_BYTES // layout.segment_bytes)
        self._newest: dict[tuple[str, int], int] = {}
        """(actor, incarnation) -> number of the newest segment that was noted."""
        self._actors: list[tuple[str, int]] = []
        self._files = self._count = 0
        self._arrays = self._empty()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self._written: Future[int] | None = None

    def arrivals(self, policy: str) -> deque[Arrival]:
        """Those of the source; what is new in them is noted."""
        arrivals = self._source.arrivals(policy)
        for arrival in arrivals:
            key = arrival.actor, arrival.incarnation
            newest = self._newest.get(key, 0)
            if int(arrival.records["number"][-1]) > newest:
                self._newest[key] = int(arrival.records["number"][-1])
                self._note(arrival, arrival.records[arrival.records["number"] > newest])
        return arrivals

    def acknowledge(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """As the source's."""
        self._source.acknowledge(policy, arrival, upto, count)

    def release(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """As the source's."""
        self._source.release(policy, slots)

    def refuse(self, policy: str, actor: tuple[str, int], fault: WireError) -> None:
        """As the source's."""
        self._source.refuse(policy, actor, fault)

    def flush_acks(self) -> None:
        """As the source's."""
        self._source.flush_acks()

    def close(self) -> None:
        """Writes what is left and waits for it; raises what went wrong with writing."""
        try:
            self._hand_over()
            self._wait()
        finally:
            self._thread.shutdown()

    def _note(self, arrival: Arrival, records: Records) -> None:
        """Copies segments [n] that are whole; those that were overwritten nobody can have."""
        while len(records):
            chunk = records[: self._room - self._count]
            records = records[len(chunk) :]
            at, n = self._count, len(chunk)
            place = place_of(chunk["slot"])
            with arrival.ring.reading():
                for name, column in arrival.ring.columns.items():
                    self._arrays[name][at : at + n] = column[place]
                intact = arrival.ring.intact(chunk)
            for name in _FIELDS:
                self._arrays[f"record.{name}"][at : at + n] = chunk[name]
            self._arrays[EPISODE][at : at + n] = chunk["episode"] @ _BYTES
            self._arrays[ACTOR][at : at + n] = self._actor((arrival.actor, arrival.incarnation))
            if not intact.all():
                for array in self._arrays.values():
                    kept = array[at : at + n][intact]
                    array[at : at + len(kept)] = kept
            self._count += int(intact.sum())
            if self._count == self._room:
                self._hand_over()

    def _actor(self, key: tuple[str, int]) -> int:
        if key not in self._actors:
            self._actors.append(key)
        return self._actors.index(key)

    def _empty(self) -> dict[str, NDArray]:
        forms = {form.name: (form.shape, form.dtype) for form in self._layout.forms}
        forms |= {name: ((), kind) for name, kind in RECORDS.items()}
        return {name: np.empty((self._room, *shape), kind) for name, (shape, kind) in forms.items()}

    def _hand_over(self) -> None:
        """Gives what is here to the thread, once that has written what it was given before."""
        if not self._count:
            return
        self._wait()
        tensors = {name: array[: self._count] for name, array in self._arrays.items()}
        told = {"layout": self._layout.hash, "actors": json.dumps(self._actors)}
        path = self._folder / f"{self._incarnation:06d}-{self._files:06d}.safetensors"
        self._written = self._thread.submit(_write, path, tensors, told)
        self._files, self._count, self._arrays = self._files + 1, 0, self._empty()

    def _wait(self) -> None:
        """For the file that is being written; raises what went wrong with it."""
        if self._written is not None:
            started = time.monotonic()
            self._counters.add(f"recorded.{self._policy}", self._written.result())
            self._counters.add(f"waits.record.{self._policy}", time.monotonic() - started)
            self._written = None


def _write(path: Path, tensors: dict[str, NDArray], told: dict[str, str]) -> int:
    """How many segments there are now in `path`, whole."""
    aside = path.with_name(f".{path.name}")
    save_file(tensors, aside, told)
    sync(aside)
    aside.rename(path)
    sync(path.parent)
    return len(tensors[ACTOR])
