"""A dataset as a member's source of segments: all of it in a ring of this process, from the start.

In flow: a reader of a dataset. Out flow: arrivals, once; nothing comes later and nobody waits for an answer.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from pathlib import Path

import numpy as np
import psutil

from protocol.config.run import Sampled
from protocol.errors import ConfigurationError, WireError
from protocol.errors.origin import shortened
from protocol.experience.layout import Layout
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Ring
from protocol.experience.validation import ActionCheck, check_final_rows, check_finite
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent
from workers.learning.datasets.minari_datasets import MinariDataset
from workers.learning.datasets.reader import RecordedDataset
from workers.learning.datasets.trajectory import Trajectory, TrajectoryReader, pieces, write
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan

log = logging.getLogger(__name__)


class DatasetSource(SegmentSource):
    """The segments in `ring`, of `rows` rows, by the actor that made them. Nobody is told anything."""

    def __init__(self, ring: Ring, actors: list[tuple[str, int]]) -> None:
        records = ring.segments(slice(0, ring.slots))
        self.ring, self.rows = ring, int(records["valid"].sum())
        self._arrivals: deque[Arrival] = deque()
        for actor in dict.fromkeys(actors):
            mine = np.array([one == actor for one in actors])
            self._arrivals.append(Arrival(*actor, ring, records[mine], False))

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What was not taken yet."""
        return self._arrivals


def load_dataset(plan: TrainingPlan, counters: Counters) -> DatasetSource:
    """The dataset of `plan`'s policy; ConfigurationError in one sentence if there is none that it can learn from."""
    reader = _open(plan)
    _check_agent(reader, plan.interface.place.agent, plan.name)
    lengths = reader.lengths()
    skipped = 0 if plan.dataset is None else _older(lengths, plan.dataset.newest)
    _check_size(reader, plan, sum(lengths[skipped:]))
    ring, actors = _fill(reader, skipped, lengths[skipped:], plan.layout)
    _check_content(ring, reader, plan)
    source = DatasetSource(ring, actors)
    counters.add(f"read.{plan.name}", ring.slots)
    counters.add(f"rows_read.{plan.name}", source.rows)
    log.info("event=dataset policy=%s name=%s segments=%d rows=%d", plan.name, reader.name, ring.slots, source.rows)
    return source


def _open(plan: TrainingPlan) -> TrajectoryReader:
    dataset = plan.dataset
    assert dataset is not None
    if dataset.minari is not None:
        return MinariDataset(dataset.minari)
    assert dataset.path is not None
    return RecordedDataset(Path(dataset.path), plan.name)


def _check_agent(reader: TrajectoryReader, agent: Agent, policy: str) -> None:
    for what in ("observation", "action", "action_mask"):
        expected, found = getattr(agent, what), getattr(reader.agent, what)
        if expected != found:
            raise ConfigurationError(
                "dataset_agent_mismatch",
                dataset=reader.name,
                field=what,
                agent=agent.name,
                policy=policy,
                value=shortened(found, 160),
                expected=shortened(expected, 160),
            )


def _check_size(reader: TrajectoryReader, plan: TrainingPlan, rows: int) -> None:
    """Neither nothing, nor less than a batch, nor more than fits into memory."""
    algorithm = plan.config.algorithm
    assert isinstance(algorithm, Sampled)
    if rows == 0:
        raise ConfigurationError("dataset_empty", dataset=reader.name, policy=plan.name)
    if rows < algorithm.batch_size:
        raise ConfigurationError(
            "dataset_smaller_than_batch",
            dataset=reader.name,
            count=rows,
            policy=plan.name,
            batch_size=algorithm.batch_size,
            key="policy.algorithm.batch_size",
        )
    needed, free = rows * plan.layout.segment_bytes // plan.layout.length, psutil.virtual_memory().available
    if needed > free:
        raise ConfigurationError(
            "dataset_exceeds_memory", dataset=reader.name, needed=needed / 2**30, free=free / 2**30
        )


def _older(lengths: list[int], rows: int | None) -> int:
    """How many stretches come before the last ones, which have `rows` rows or more; 0 for all rows."""
    if rows is None:
        return 0
    from_behind = np.cumsum(lengths[::-1])
    return max(0, len(lengths) - 1 - int(np.searchsorted(from_behind, rows)))


def _fill(
    reader: TrajectoryReader, skip: int, lengths: list[int], layout: Layout
) -> tuple[Ring, list[tuple[str, int]]]:
    """A ring with the stretches of `lengths`, which come after `skip` others, and the actor of each segment."""
    cuts = [pieces(valid, layout.length) for valid in lengths]
    slots = sum(map(len, cuts))
    ring, actors = Ring.create(None, layout, slots), []
    valid, before = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    every, slot = slice(0, slots), 0
    own = {field.name for field in layout.fields}
    ring.begin(every)
    for stretch, cut in zip(islice(reader.stretches(), skip, None), cuts, strict=True):
        stretch = stretch.of(own)
        if slot == 0:
            _check_columns(stretch, ring, reader)
        for start, rows in cut:
            before[slot] = write(ring, slot, stretch, start, rows, reader.name)
            valid[slot] = rows
            ring.fields["stream"][slot] = stretch.stream
            ring.fields["stream_sequence"][slot] = stretch.sequence
            actors.append((stretch.actor, stretch.incarnation))
            slot += 1
    ring.finish(every, 1, valid, before)
    return ring, actors


def _check_columns(stretch: Trajectory, ring: Ring, reader: TrajectoryReader) -> None:
    """What one stretch has all have: everything that is asked for, in the same form."""
    for field in ring.layout.fields:
        if field.name in ("version", "final_row"):
            continue
        shape = field.shape if field.per == "row" else field.shape[1:]
        found = {**stretch.columns, **stretch.finals}.get(field.name)
        if found is None or (found.dtype, found.shape[1:]) != (np.dtype(field.dtype), shape):
            form = "missing" if found is None else f"{found.dtype}{list(found.shape[1:])}"
            raise ConfigurationError(
                "dataset_field_mismatch",
                dataset=reader.name,
                field=field.name,
                value=form,
                dtype=field.dtype,
                shape=list(shape),
            )


def _check_content(ring: Ring, reader: TrajectoryReader, plan: TrainingPlan) -> None:
    """The same that is asked of what comes from actors elsewhere."""
    records = ring.segments(slice(0, ring.slots))
    try:
        check_final_rows(ring.columns["final_row"], ring.layout)
        check_finite(ring.columns, records, ring.layout)
        ActionCheck(plan.interface.place)(ring.columns, records, ring.layout)
    except WireError as fault:
        said = str(fault).partition(";")[0]
        raise ConfigurationError("dataset_environment_mismatch", dataset=reader.name, reason=said) from None
