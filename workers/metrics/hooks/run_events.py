"""What happens to a run, as events: seen in what its coordinator tells whoever watches it, and in files of its folder.

In flows: views, `evaluations.jsonl`, `history.jsonl`, `summary.json`. Out flow: events with growing numbers, each once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from protocol.control.run_summary import read_summary
from workers.metrics.hooks.hook import CommandEvent, EvaluationEvent, FindingEvent, RunEvent, WorkerEvent

Told = tuple[str, Any]
"""The name of an event, and the event."""


class RunEvents:
    """Of the run in `folder`, from now on; `first`: nobody has been told of it before. `changes`: how many bytes of its
    history have been told; -1: all that are there."""

    def __init__(self, folder: Path, first: bool, changes: int = -1) -> None:
        self._folder, self._first, self._number = folder, first, 0
        self._workers: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._found: set[tuple[str, str]] = set()
        self._orders: tuple[bool, int, bool] | None = None
        self._evaluations = _Lines(folder / "evaluations.jsonl", 0 if first else -1)
        self.changes = _Lines(folder / "history.jsonl", changes)

    def begin(self) -> Iterator[Told]:
        """The run begins."""
        yield "run_start", RunEvent(self._next(), self._folder, self._first)

    def look(self, view: Mapping[str, Any]) -> Iterator[Told]:
        """What is new in a `view` of the coordinator's, and in the files."""
        if view:  # one that has just come back has none yet
            yield from self._of_workers(view)
            yield from self._of_findings(view)
            yield from self._of_commands(view)
        for line in self._evaluations.new():
            measured = [line[name] for name in ("policy", "environment", "agent_steps", "version", "mean")]
            yield "evaluation", EvaluationEvent(self._next(), *measured, told=line)  # type: ignore[misc] # there are five
        for line in self.changes.new():
            yield "command", CommandEvent(self._next(), line.get("command", "set"), line["key"], line["new"])

    def end(self) -> Iterator[Told]:
        """The run has ended, if it has: it has a summary then."""
        if (summary := read_summary(self._folder)) is not None:
            yield "run_end", RunEvent(self._next(), self._folder, self._first, summary["complete"], summary)

    def _of_workers(self, view: Mapping[str, Any]) -> Iterator[Told]:
        now = {(one["name"], one["incarnation"]): one for one in view.get("workers", ())}
        left = {(name, incarnation) for name, incarnation in view.get("left", ())}
        for key in self._workers.keys() - now.keys():
            yield "worker_end", _worker(self._next(), self._workers[key], key in left)
        for key in sorted(now.keys() - self._workers.keys()):
            yield "worker_start", _worker(self._next(), now[key])
        self._workers = now

    def _of_findings(self, view: Mapping[str, Any]) -> Iterator[Told]:
        for one in view.get("health", ()):
            if (key := (one["policy"], one["finding"])) not in self._found:
                self._found.add(key)
                facts = (one[name] for name in ("policy", "layer", "level", "finding", "says", "remedy"))
                yield "finding", FindingEvent(self._next(), *facts)

    def _of_commands(self, view: Mapping[str, Any]) -> Iterator[Told]:
        stopped = view.get("stage", "running") != "running" and not view.get("complete", True)
        orders = view.get("paused", False), view.get("checkpoints", 0), stopped
        before, self._orders = self._orders or (False, orders[1], False), orders
        if orders[0] != before[0]:
            yield "command", CommandEvent(self._next(), "pause" if orders[0] else "resume")
        if orders[1] > before[1]:
            yield "command", CommandEvent(self._next(), "checkpoint")
        if stopped and not before[2]:
            yield "command", CommandEvent(self._next(), "stop")

    def _next(self) -> int:
        self._number += 1
        return self._number


class _Lines:
    """Whole lines of JSON that are appended to a file, from a place on; -1: from its present end."""

    def __init__(self, path: Path, at: int) -> None:
        self._path = path
        self.at = at if at >= 0 else path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self.at)
            whole, end, _ = file.read().rpartition(b"\n")
        self.at += len(whole) + len(end)
        return [json.loads(line) for line in whole.splitlines()]


def gone_on(folder: Path) -> bool:
    """Whether the run went on with another configuration; commands are numbered, and may come before hooks begin."""
    return any("number" not in line for line in _Lines(folder / "history.jsonl", 0).new())


def _worker(number: int, row: Mapping[str, Any], in_order: bool | None = None) -> WorkerEvent:
    return WorkerEvent(number, row["name"], row["role"], row["incarnation"], row.get("host", ""), in_order)
