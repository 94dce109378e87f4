"""What a learner took in and when: a recording with an order, by which the learner alone makes the same bits again.

In flow: recorded segments, in the order in which they arrived, and how many of them had been taken in at each update.
Out flow: a source that gives just these before each update. What a run's actors, network and clock did to it is in the
order; so the same configuration learns the same.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Replayed, Run
from protocol.errors import ConfigurationError
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Records, Ring
from workers.learning.datasets.dataset_manifest import ACTOR, FILES, MANIFEST, read_manifest
from workers.learning.datasets.reader import SegmentFile, read_segments
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan


class ReplayedRun(SegmentSource):
    """The segments `arrivals`, in the order in which they came; before update i, `order`[i] of them had been taken in.
    Nobody is told anything."""

    def __init__(self, arrivals: deque[Arrival], order: list[int]) -> None:
        self._later, self._order = arrivals, deque(order)
        self._now: deque[Arrival] = deque()
        self._given = 0

    def advance(self) -> bool:
        """Gives what the next update had; where there is no further one, all that is left, and False."""
        upto = self._order.popleft() if self._order else None
        while self._later and (upto is None or self._given < upto):
            arrival = self._later[0]
            many = len(arrival.records) if upto is None else min(upto - self._given, len(arrival.records))
            self._now.append(replace(arrival, records=arrival.records[:many]))
            arrival.records = arrival.records[many:]
            self._given += many
            if not len(arrival.records):
                self._later.popleft()
        return upto is not None

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What was given and not taken yet."""
        return self._now


def load_replayed_run(plan: TrainingPlan, run: Run) -> ReplayedRun:
    """What the learner of `plan`'s policy recorded in the folder `run.replay`; ConfigurationError in one sentence if
    that does not tell what it learned from."""
    folder = Path(run.replay or "") / "datasets" / plan.name
    if not (folder / MANIFEST).is_file() or not (folder / ORDER).is_file():
        raise ConfigurationError("replay_order_missing", file=run.replay, policy=plan.name, key="replay")
    _, layout = read_manifest(folder)
    if layout.hash != plan.layout.hash:
        raise ConfigurationError(
            "replay_segments_mismatch",
            file=folder,
            policy=plan.name,
            configuration=Path(run.replay or "") / "config.yaml",
            key="replay",
        )
    parts = [read_segments(file, layout) for file in sorted(folder.glob(FILES))]
    whole = all((part.records["record.valid"] == layout.length).all() for part in parts)
    if isinstance(plan.config.algorithm, Replayed) and not whole:
        raise ConfigurationError("replay_segments_not_full", file=folder, key="replay")
    return ReplayedRun(_arrivals(parts, plan), read_order(folder / ORDER))


def _arrivals(parts: list[SegmentFile], plan: TrainingPlan) -> deque[Arrival]:
    """Runs of one actor's segments, in the order in which they came; each actor's lie in a ring of its own."""
    actors = list(dict.fromkeys(actor for part in parts for actor in part.actors))
    of = [np.array([actors.index(actor) for actor in part.actors], np.int64)[part.records[ACTOR]] for part in parts]
    records = [_ring(number, parts, of, plan) for number in range(len(actors))]
    taken = [0] * len(actors)
    arrivals: deque[Arrival] = deque()
    sequence = np.concatenate(of) if of else np.zeros(0, np.int64)
    for run in np.split(sequence, np.flatnonzero(np.diff(sequence)) + 1) if len(sequence) else ():
        number, first = int(run[0]), taken[int(run[0])]
        taken[number] = first + len(run)
        ring, all_of_it = records[number]
        arrivals.append(Arrival(*actors[number], ring, all_of_it[first : first + len(run)], False))
    return arrivals


def _ring(number: int, parts: list[SegmentFile], of: list[NDArray], plan: TrainingPlan) -> tuple[Ring, Records]:
    """A ring with all segments of actor `number`, and their records."""
    chosen = [mine == number for mine in of]
    slots = slice(0, sum(int(mine.sum()) for mine in chosen))
    ring = Ring.create(None, plan.layout, slots.stop)
    ring.begin(slots)
    for name, column in ring.columns.items():
        column[:] = np.concatenate([part.columns[name][mine] for part, mine in zip(parts, chosen, strict=True)])

    def told(name: str) -> NDArray:
        return np.concatenate([part.records[f"record.{name}"][mine] for part, mine in zip(parts, chosen, strict=True)])

    for name in ("stream", "stream_sequence", "version_min", "version_max"):
        ring.table[name][:] = told(name)
    ring.finish(slots, told("number"), told("valid").astype(np.int64), told("before").astype(np.int64))
    return ring, ring.segments(slots)


ORDER = "order.jsonl"


class UpdateLog:
    """Writes a line for each update to `path`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def write(self, segments: int, train_steps: int, losses: Mapping[str, float]) -> None:
        """An update was made when `segments` had been taken in; `losses` are what it said of itself."""
        told = {name: float(value) for name, value in losses.items()}
        line = {"segments": segments, "train_steps": train_steps, "losses": told}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def open_update_log(plan: TrainingPlan, run: Run, incarnation: int, folder: Path | None) -> UpdateLog | None:
    """The order of `plan`'s policy, beside its recorded segments or, of a run that replays some, in `replayed`; none
    where nothing is recorded, or where an earlier incarnation of the learner has taken a part of it along."""
    if folder is None or not (plan.recorded or run.replay):
        return None
    path = folder / "datasets" / plan.name / ORDER if plan.recorded else folder / "replayed" / f"{plan.name}.jsonl"
    if incarnation > 1:
        path.unlink(missing_ok=True)
        return None
    return UpdateLog(path)


def read_order(path: Path) -> list[int]:
    """How many segments had been taken in at each update; ConfigurationError for what is no order."""
    try:
        return [int(json.loads(line)["segments"]) for line in path.read_text().splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise ConfigurationError("update_order_invalid", file=path, reason=str(fault)) from None
