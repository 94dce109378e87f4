"""Lock-step at the learner: a policy's segments round by round, in the order of the streams, whoever sent them.

In flow: arrivals in any order. Out flow: the same as another source would give, a round at a time; the next one only
when this one is ended.
What happened in each goes to `rounds/POLICY.jsonl`, a line a round, the same bytes for the same bits, so that two runs
can be compared step by step: data and weights by their checksum, numbers as they are. What people told the policy goes
to `rounds/POLICY.commands.jsonl`, with the round before which it was followed.
Legend: `S` streams of all actors, `T` segment length.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.config.yaml_file import read_run_in
from protocol.errors import ConfigurationError, TrainingFault, WireError
from protocol.experience.layout import Layout
from protocol.experience.receiver import Arrival
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan
from workers.runtime.files import AppendFile, SafeWriter, sync
from workers.runtime.state_capture import State

log = logging.getLogger(__name__)

_PRIVATE = ("version", "moment")
"""Columns that tell which incarnation of a learner or actor it was, and not what happened."""


class RoundLog:
    """Of a policy with `streams` S, whose segments have `layout`; lines go to `path`. One for which there is no room is
    told of in the worker's log, and the run goes on without it."""

    def __init__(self, path: Path, layout: Layout, streams: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._file = path, AppendFile(path, SafeWriter())
        self._layout = layout
        self._earned = np.zeros(streams)
        """[S]: in the present episode of each stream."""
        self._data = ""
        self._returns: list[float] = []
        self._losses: list[dict[str, float]] = []

    @property
    def rounds(self) -> int:
        """How many it tells of."""
        return self._path.read_bytes().count(b"\n")

    def came(self, blocks: Sequence[Arrival]) -> None:
        """A round's segments, by stream; before anything is taken of them."""
        digest = hashlib.sha256()
        first, self._returns = 0, []
        for block in blocks:
            slots = block.records["slot"]
            with block.ring.reading():
                columns = {name: column[slots] for name, column in block.ring.columns.items() if name not in _PRIVATE}
            for part in _told(columns, self._layout):
                digest.update(np.ascontiguousarray(part).tobytes())
            self._follow(slice(first, first + len(slots)), columns)
            first += len(slots)
        self._data = digest.hexdigest()

    def learned(self, metrics: Mapping[str, float]) -> None:
        """What one update said of itself."""
        self._losses.append({name: float(value) for name, value in metrics.items()})

    def end(self, number: int, version: int, train_steps: int, weights: NDArray[np.uint8]) -> None:
        """Writes the line of round `number`, after which `weights` [nbytes] are published."""
        line = {
            "round": number,
            "version": version,
            "train_steps": train_steps,
            "data": self._data,
            "weights": hashlib.sha256(weights.tobytes()).hexdigest(),
            "returns": self._returns,
            "losses": self._losses,
        }
        self._file.append(f"{json.dumps(line)}\n".encode())
        self._losses = []

    def get_state(self) -> State:
        """Between two rounds: how much of the file there is, and what present episodes have earned."""
        return {"bytes": np.array([self._file.size], np.int64), "earned": self._earned.copy()}

    def set_state(self, state: State) -> None:
        """The inverse; what was written since is dropped."""
        self._file.shorten(int(state["bytes"][0]))
        self._earned[:] = state["earned"]

    def begin(self) -> None:
        """From the beginning of the run: drops what an earlier one wrote."""
        self._file.shorten(0)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _follow(self, streams: slice, columns: Mapping[str, NDArray]) -> None:
        """Adds up what was earned, row after row, and keeps the returns of episodes that ended."""
        before, length = self._layout.before, self._layout.length
        ended = columns["terminated"] | columns["truncated"]
        for row in range(before, before + length):
            earned = self._earned[streams]
            earned += columns["reward"][:, row]
            over = ended[:, row]
            self._returns += earned[over].tolist()
            earned[over] = 0.0


Held = tuple[float | None, bool]
"""What people want of a policy: its learning rate (None: as configured), and whether it is frozen."""


class RoundCommands:
    """What people told a policy, and before which round it followed that: the lines of `path`. Where they are those of
    another run, as `repeated` says, nothing is added. Without a path nothing is followed: after a death it could not be
    repeated."""

    def __init__(self, path: Path | None, repeated: bool = False) -> None:
        self._path, self._repeated, self._disk = path, repeated, SafeWriter()
        self._warned = False
        self.made = 0
        """Rounds that were made before, some of which may be made again."""
        text = path.read_text() if path is not None and path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if path is not None and whole != text:  # a machine died as it wrote
            os.truncate(path, len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        self._lines: list[tuple[int, Held]] = [
            (line["round"], (line["learning_rate"], line["frozen"])) for line in lines
        ]

    def before(self, number: int, wanted: Held | None) -> Held:
        """What is to hold before round `number`: what is `wanted`, unless that round is made again."""
        again = self._repeated or number < self.made
        return self._standing(number) if wanted is None or again else wanted

    def keep(self, number: int, held: Held) -> bool:
        """Whether it is on the disk that this holds from round `number` on."""
        if held == self._standing(number):
            return True
        if self._path is None:
            if not self._warned:
                log.warning("event=command_not_followed reason=this learner does not see the run's folder")
            self._warned = True
            return False
        if not self._written(self._path, {"round": number, "learning_rate": held[0], "frozen": held[1]}):
            return False
        self._lines.append((number, held))
        return True

    def _standing(self, number: int) -> Held:
        return next((held for at, held in reversed(self._lines) if at <= number), (None, False))

    def _written(self, path: Path, line: Mapping[str, Any]) -> bool:
        try:
            file = AppendFile(path, self._disk)
            before = file.size
            try:
                if not file.append(f"{json.dumps(line)}\n".encode()):
                    return False
                for place in (path, path.parent):
                    sync(place)
            except OSError:
                file.shorten(before)
                raise
            finally:
                file.close()
        except OSError as fault:
            self._disk.record_disk_full(fault)
            return False
        return True


def commands_of(run: Run, policy: str, folder: Path | None) -> RoundCommands:
    """Those of `policy` in the run's `folder`, where those of the run that `run.commands` names are put once.
    ConfigurationError where that is none in lock-step."""
    path = None if folder is None else folder / "rounds" / f"{policy}.commands.jsonl"
    if run.commands is None or path is None or path.exists():
        return RoundCommands(path, repeated=run.commands is not None)
    other = Path(run.commands)
    if not read_run_in(other).lockstep:
        raise ConfigurationError("commands_without_lockstep", key="commands", file=other)
    told, aside = other / "rounds" / path.name, path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.write_bytes(told.read_bytes() if told.exists() else b"")
    sync(aside)
    aside.rename(path)
    return RoundCommands(path, repeated=True)


def _told(columns: Mapping[str, NDArray], layout: Layout) -> list[NDArray]:
    """What was written of the segments [n]: their own rows, the observation behind them, and entries in use."""
    rows = slice(layout.before, layout.before + layout.length)
    used = columns["final_row"] >= 0
    seen = {name.removeprefix("final_") for name in columns if name.startswith("final_")}
    parts = []
    for field in layout.fields:
        if field.name not in columns:
            continue
        column = columns[field.name]
        if field.per == "row":
            parts.append(column[:, rows.start : rows.stop + (field.name in seen)])
        else:
            parts.append(column[used] if field.name.startswith("final_") else column)
    return parts


class LockstepRounds:
    """`source`, for a policy of `streams` S whose segments come in blocks of `block` and have `length` T rows; `log`
    hears of them."""

    def __init__(
        self, source: SegmentSource, policy: str, streams: int, block: int, length: int, log: RoundLog | None = None
    ) -> None:
        self._source, self._policy, self.log = source, policy, log
        self._streams, self._block, self._length = streams, block, length
        self.number = 0
        """Of the round that is taken, or waited for."""
        self._waiting: dict[int, list[Arrival]] = defaultdict(list)
        """By round, as they came."""
        self._taken: list[Arrival] = []
        """What the present round consists of, to be settled when it is ended; empty while it is waited for."""
        self._open: deque[Arrival] = deque()
        self._senders: dict[str, int] = {}
        """Incarnations of the actors."""
        self._refused = False

    @property
    def open(self) -> bool:
        """Whether the present round is there."""
        return bool(self._taken)

    @property
    def used(self) -> bool:
        """Whether all of it was taken."""
        return self.open and not self._open

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What is left of the present round, a block an arrival."""
        self._check()
        came = self._source.arrivals(policy)
        while came:
            self._sort(came.popleft())
        waiting = self._waiting.get(self.number)
        if not self._taken and waiting and sum(len(one.records) for one in waiting) == self._streams:
            self._taken = self._waiting.pop(self.number)
            blocks = self._ordered(self._taken)
            self._open.extend(blocks)
            if self.log is not None:
                self.log.came(blocks)
        return self._open

    def end(self) -> None:
        """The present round is used: its senders may write over it, and the next one is waited for."""
        self._check()
        for arrival in self._taken:
            self._source.acknowledge(self._policy, arrival, int(arrival.records["number"][-1]), len(arrival.records))
        self._source.flush_acks()
        self._taken = []
        self.number += 1

    def get_state(self) -> State:
        """Between two rounds: how many there were, and what their log knows."""
        told = {} if self.log is None else self.log.get_state()
        return {**told, "number": np.array([self.number], np.int64)}

    def set_state(self, state: State) -> None:
        """The inverse, before anything has come."""
        self.number = int(state["number"][0])
        if self.log is not None:
            self.log.set_state(state)

    def acknowledge(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """Only with the whole round."""

    def release(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """As the source's."""
        self._source.release(policy, slots)

    def refuse(self, policy: str, actor: tuple[str, int], fault: WireError) -> None:
        """As the source's; the round can never be whole then."""
        self._source.refuse(policy, actor, fault)
        self._refused = True

    def flush_acks(self) -> None:
        """As the source's."""
        self._source.flush_acks()

    def _check(self) -> None:
        if self._refused:
            raise TrainingFault("lockstep_segment_refused", policy=self._policy)

    def _sort(self, arrival: Arrival) -> None:
        """Puts segments to their rounds."""
        records = arrival.records
        if self._senders.setdefault(arrival.actor, arrival.incarnation) != arrival.incarnation:
            raise TrainingFault("worker_rejoined_lockstep", peer=arrival.actor)
        if (records["valid"] != self._length).any() or (records["stream"] >= self._streams).any():
            raise TrainingFault(
                "lockstep_segments_incomplete",
                policy=self._policy,
                rows=self._length,
                streams=self._streams,
                key="schedule",
            )
        for number in np.unique(records["stream_sequence"]).tolist():
            mine = records[records["stream_sequence"] == number]
            self._waiting[number].append(replace(arrival, records=mine))

    def _ordered(self, arrivals: list[Arrival]) -> list[Arrival]:
        """A round's segments in blocks, by stream."""
        records = np.concatenate([arrival.records for arrival in arrivals])
        of = np.repeat(np.arange(len(arrivals)), [len(arrival.records) for arrival in arrivals])
        order = np.argsort(records["stream"], kind="stable")
        if (records["stream"][order] != np.arange(self._streams)).any():
            raise TrainingFault("lockstep_stream_repeated", policy=self._policy, round=self.number)
        blocks = []
        for first in range(0, self._streams, self._block):
            mine = order[first : first + self._block]
            blocks.append(replace(arrivals[of[mine[0]]], records=records[mine]))
        return blocks


def in_rounds(source: SegmentSource, plan: TrainingPlan, folder: Path | None) -> LockstepRounds:
    """What comes from `source` for `plan`, round by round; each leaves a line in the run's `folder`."""
    log = None if folder is None else RoundLog(folder / "rounds" / f"{plan.name}.jsonl", plan.layout, plan.streams)
    return LockstepRounds(source, plan.name, plan.streams, plan.block, plan.layout.length, log)
