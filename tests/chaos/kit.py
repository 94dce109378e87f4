"""The chaos kit: undisturbed runs to compare with, then run after run under faults, each audited.

In flows: minutes, a seed. Out flow: a report, whose findings are empty where all holds.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.audit import (
    Point,
    audit_books,
    audit_descriptors,
    audit_notes,
    audit_returns,
    left_over,
    read_curve,
    read_notes,
)
from tests.chaos.ground import Ground, ground
from tests.chaos.plan import KINDS, ROLES, Fault, faults
from tests.chaos.scene import Scene
from tests.chaos.worlds import WORLDS, configuration

__all__ = ["Report", "audit", "chaos"]

_ANYWHERE = ("kill", "stop", "clock", "hostile", "truncate", "kill_all")
"""Kinds of faults that any ground allows."""
_LONGEST = 6.0
"""Seconds that a fault lasts at most: longer than a lease."""
_UNDISTURBED = 3
"""Runs of a world, whose returns spread between seeds."""
_PART = 0.6
"""Of a run's steps, after which it is left in peace until it ends: it shall still have learnt, whatever was done."""


@dataclass
class Report:
    """What came of it."""

    seed: int
    seconds: float = 0.0
    runs: Counter[str] = field(default_factory=Counter)
    thrown: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    ended_early: Counter[str] = field(default_factory=Counter)
    returns: dict[str, list[float]] = field(default_factory=dict)
    """World -> mean returns at the end: the lowest undisturbed, then of each run under faults."""
    segments: int = 0
    missing: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def table(self) -> str:
        """For people, in Markdown."""
        lines = [
            f"seed {self.seed}, {self.seconds / 60:.1f} minutes, {sum(self.runs.values())} runs under faults, "
            f"{sum(self.thrown.values())} faults, {self.segments:,} segments accounted for",
            "",
            "| fault | " + " | ".join((*_PHASES, *_TARGETS)) + " |",
            "|---|" + "---|" * len((*_PHASES, *_TARGETS)),
        ]
        for kind in KINDS:
            counts = [self.thrown[f"{kind} {phase}"] for phase in _PHASES]
            counts += [self.met[f"{kind} {target}"] for target in _TARGETS]
            if any(counts):
                lines.append(f"| {kind} | " + " | ".join(map(str, counts)) + " |")
        lines += ["", "| run | runs | return undisturbed | under faults |", "|---|---|---|---|"]
        for world, (first, *rest) in self.returns.items():
            lines.append(f"| {world} | {self.runs[world]} | {first:.1f} | {', '.join(f'{r:.1f}' for r in rest)} |")
        lines += ["", "workers started again: " + (_counts(self.restarts) or "none")]
        lines += [
            f"ended by a fault, and told (gone on with where it was killed): {count} × {why}"
            for why, count in self.ended_early.items()
        ]
        lines += [f"left out: {why}" for why in self.missing]
        lines += ["", f"findings: {len(self.findings)}", *(f"- {finding}" for finding in self.findings)]
        return "\n".join(lines)


_PHASES = ("running", "starting", "recovering", "ending")
_TARGETS = (*ROLES, "all")


def chaos(
    minutes: float,
    seed: int,
    say: Callable[[str], None],
    worlds: Sequence[str] = (),
    *,
    scale: float = 1.0,
    learn: bool = True,
    keep: str | None = None,
    pause: float = 1.5,
    seconds: float = 60.0,
) -> Report:
    """Runs of `worlds` (all of them, in turn) until `minutes` are over, one at least. `learn`: returns are compared
    with those of undisturbed runs, which come first and count to no time. Each has faults for `seconds`, with a `pause`
    between them on average."""
    report, began, peace = Report(seed), time.monotonic(), 0.0
    chosen = list(worlds) or list(WORLDS)
    undisturbed: dict[str, list[list[Point]]] = {}
    try:
        while not report.runs or time.monotonic() - began - peace < 60 * minutes:
            number = sum(report.runs.values())
            world = chosen[number % len(chosen)]
            steps = int(WORLDS[world][1] * scale)
            if learn and world not in undisturbed:
                peace_from = time.monotonic()
                say(f"{world}, undisturbed")
                count = _UNDISTURBED if WORLDS[world][2].least is None else 1
                every = [_one(report, world, steps, seed + 1000 * i, None, say, keep) for i in range(count)]
                undisturbed[world] = [curve for curve in every if curve]
                report.returns[world] = [min((curve[-1][1] for curve in undisturbed[world]), default=math.nan)]
                peace += time.monotonic() - peace_from
            say(f"{world}, run {number} of seed {seed}")
            plan = partial(faults, f"{seed}-{number}", longest=_LONGEST, pause=pause)
            _one(report, world, steps, seed + number, plan, say, keep, number, seconds, undisturbed.get(world))
            report.runs[world] += 1
    except KeyboardInterrupt:
        report.missing.append("what was to come: it was interrupted")
    report.seconds = time.monotonic() - began - peace
    return report


def _one(
    report: Report,
    world: str,
    steps: int,
    seed: int,
    plan: Callable[[Sequence[str]], Iterator[Fault]] | None,
    say: Callable[[str], None],
    keep: str | None,
    number: int = 0,
    seconds: float = 0.0,
    undisturbed: Sequence[Sequence[Point]] | None = None,
) -> list[Point]:
    """One run, undisturbed without a `plan` for the kinds of faults that are possible, and its audit; its returns as it
    went on, if it came to its end. They are compared with those of `undisturbed` runs, if there are any."""
    with ground() as place:
        report.missing = place.missing
        kinds = [kind for kind in KINDS if kind in (*_ANYWHERE, *place.kinds)]
        mark = uuid.uuid4().hex
        scene = Scene(place, configuration(world, steps, seed), mark, say, seconds=seconds, part=_PART)
        if plan is None:
            scene.undisturbed()
        else:
            scene.live(plan(kinds))
        found, summary = audit(scene, steps)
        curve = [] if scene.over or not summary else read_curve(scene.folder)
        if curve and undisturbed:
            updates, reached = curve[-1]
            report.returns[world].append(reached)
            drops = WORLDS[world][0]["policy"].get("flow", "block") != "block"
            found += audit_returns(reached, updates if drops else None, undisturbed, WORLDS[world][2])
        for finding in found:
            say(f"  FOUND {finding}")
        report.findings += [f"{world} {number}: {finding}" for finding in found]
        report.thrown += Counter({name: n for name, n in scene.thrown.items() if name != "in the ending"})
        report.met += scene.met
        report.restarts += Counter(summary.get("restarts", {}))
        report.ended_early += Counter(scene.ended_early)
        report.segments += summary.get("segments", {}).get("produced", 0)
        if found and keep is not None:
            _keep(place, Path(keep) / f"{world}-{report.seed}-{number}")
        return curve


def audit(scene: Scene, steps: int) -> tuple[list[str], dict[str, Any]]:
    """What does not hold after a run, and its summary."""
    found = list(scene.findings)
    path = scene.folder / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    found += audit_books(summary, None if scene.over else steps) if summary else ["there is no summary"]
    found += audit_notes(read_notes(scene.notes), _to_be_dropped(scene.data["policy"], summary))
    found += audit_descriptors(scene.descriptors)
    found += left_over(scene.mark, scene.ground.left(), scene.folder)
    if "Traceback" in (said := scene.said.read_text()):
        shown = said.partition("Traceback")[2].splitlines()
        found.append(f"the command showed a traceback: {next((line for line in shown[1:] if line[:1] != ' '), '')}")
    return found, summary


def _to_be_dropped(policy: dict[str, Any], summary: dict[str, Any]) -> int:
    """Segments that were written over before they were taken, which only replay and flows that drop may do."""
    may = policy.get("flow", "block") != "block" or "buffer_capacity" in policy["algorithm"]
    return sum(summary["segments"]["dropped"].values()) if may and summary else 0


def _keep(place: Ground, folder: Path) -> None:
    """Copies what a finding can be understood from."""
    shutil.copytree(place.disk / "run", folder / "run", dirs_exist_ok=True)
    for name in ("train.txt", "witness.jsonl"):
        if (place.folder / name).exists():
            shutil.copy(place.folder / name, folder / name)
    os.sync()


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
