"""What must hold after a run under faults, whatever was done to it: one sentence for each thing that does not.

In flows: the summary, what the workers were seen to do, what is left of them. Pure but for `left_over`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from tests.chaos.worlds import Goal
from tests.flows.runs import balanced
from tests.leak_guard import MARK

__all__ = ["audit_books", "audit_notes", "audit_returns", "left_over", "read_curve", "read_notes"]

Note = list[Any]
Point = tuple[int, float]

_LEAST_TRAINED = 0.1
"""Of the updates of an undisturbed run: less than what is made in the part that is left in peace."""


def read_notes(path: Path) -> list[Note]:
    """What was noted, without a last line that was cut off by a death."""
    notes = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            notes.append(json.loads(line))
    return notes


def audit_books(summary: dict[str, Any], steps: int | None) -> list[str]:
    """Of `summary.json`: complete (where it was to make so many `steps`), both identities, nothing unexplained, no
    amount below nothing."""
    segments, found = summary["segments"], []
    if steps is not None and (not summary["complete"] or summary["agent_steps"] < steps):
        found.append(f"the run is not complete: {summary['agent_steps']} of {steps} steps")
    if not balanced(segments):
        found.append(f"the identities do not hold: {segments}")
    if segments["unexplained"]:
        found.append(f"{segments['unexplained']} segments are unexplained")
    amounts = {name: value for name, value in segments.items() if name not in ("dropped", "unexplained")}
    below = {name: value for name, value in {**amounts, **segments["dropped"]}.items() if value < 0}
    if below:
        found.append(f"amounts below nothing: {below}")
    return found


def audit_notes(notes: Iterable[Note], dropped: int = 0) -> list[str]:
    """Of what was seen: nothing is copied twice by one learner, nor again after it was settled; what is settled was
    copied, but for so many segments as the books call `dropped`; versions grow."""
    found: list[str] = []
    copied: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    by_process: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    settled: dict[tuple[Any, ...], int] = defaultdict(int)
    newest: dict[tuple[Any, ...], tuple[int, int]] = {}
    for what, pid, place, *facts in notes:
        if what in ("published", "adopted"):
            key, version = (what, place) if what == "published" else (what, pid, place), (facts[0], facts[1])
            if version < newest.get(key, (0, 0)) or (what == "adopted" and version == newest.get(key)):
                found.append(f"{what} version {version} after {newest[key]} by process {pid}")
            newest[key] = version
            continue
        actor, incarnation, numbers = facts
        key = (place, actor, incarnation)
        if what == "settled":
            settled[key] = max(settled[key], numbers)
            continue
        twice = by_process[(pid, *key)].intersection(numbers)
        if twice or len(set(numbers)) < len(numbers):
            found.append(f"process {pid} took segments {sorted(twice)[:5]} of {key} twice")
        again = [number for number in numbers if number <= settled[key]]
        if again:
            found.append(f"process {pid} took segments {again[:5]} of {key}, settled up to {settled[key]}, again")
        by_process[(pid, *key)].update(numbers)
        copied[key].update(numbers)
    lost = {key: sorted(set(range(1, upto + 1)) - copied[key]) for key, upto in settled.items()}
    if (count := sum(map(len, lost.values()))) > dropped:
        some = {key: numbers[:5] for key, numbers in lost.items() if numbers}
        found.append(f"{count} segments were acknowledged and never taken, {dropped} were to be dropped: {some}")
    return found


def audit_returns(reached: float, trained: int | None, undisturbed: Sequence[Sequence[Point]], goal: Goal) -> list[str]:
    """The mean return of all policies at the end, beside the lowest of undisturbed runs of several seeds: at their ends
    or, for a run that made `trained` updates of steps that wait for nobody, where these had made as many; so many have
    to be made."""
    if goal.least is not None:
        before = min(curve[-1][1] for curve in undisturbed)
        wanted, sound = goal.least, min(reached, before) >= goal.least
    else:
        most = max(curve[-1][0] for curve in undisturbed)
        if trained is not None and trained < _LEAST_TRAINED * most:
            return [f"{trained} updates, undisturbed {most}"]
        upto = most if trained is None else trained
        before = min([value for updates, value in curve if updates <= upto][-1] for curve in undisturbed)
        wanted = before - (1 - goal.part) * abs(before)
        sound = reached >= wanted
    return [] if sound else [f"return {reached:.1f}, undisturbed {before:.1f}, to be reached {wanted:.1f}"]


def read_curve(folder: Path) -> list[Point]:
    """Of a run that is over: its mean return over all policies after so many updates of all, each a mean over the last
    tenth of them: a single point is of the few episodes that ended since the one before it."""
    points: list[Point] = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        policies = [value for value in json.loads(line).values() if isinstance(value, dict)]
        if policies and all("return" in policy for policy in policies):
            updates = sum(policy["train_steps"] for policy in policies)
            points.append((updates, mean(policy["return"] for policy in policies)))
    return [(at, mean(value for updates, value in points if 0.9 * at <= updates <= at)) for at, _ in points]


def audit_descriptors(launchers: dict[int, list[int]]) -> list[str]:
    """Of the command itself, whose workers come and go: as many descriptors open at the end as near the start."""
    found = []
    for pid, counts in launchers.items():
        if len(counts) > 4 and min(counts[-3:]) > max(counts[:3]) + 4:
            found.append(f"the launcher {pid} had {counts[0]} descriptors at first and {counts[-1]} at last")
    return found


def left_over(mark: str, memory: Sequence[str], folder: Path) -> list[str]:
    """Processes, shared memory and half-written files that outlived the run."""
    found = [f"shared memory left: {name}" for name in memory]
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if mark in process.environ().get(MARK, "") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process left: {process.pid} {' '.join(process.cmdline())[-80:]}")
    for path in folder.rglob(".*"):
        if path.name != ".lock":
            found.append(f"half-written file left: {path.relative_to(folder)}")
    return found
