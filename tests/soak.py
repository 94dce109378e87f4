"""`make soak [MINUTES=n]`: one run in peace, and whether what its processes hold stays flat. Exit code 1: it grows.

In flows: minutes. Out flow: a table of memory, descriptors and threads of each worker, and of the shared memory of all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil
import yaml

from tests.chaos.worlds import WORLDS
from tests.tools import ROOT, require

__all__ = ["Course", "Held", "Look", "grown", "soak", "watch"]

_EVERY, _WINDOW = 0.01, 5.0
"""Seconds from look to look, and of the windows of which each tells the least that was seen in it: what comes and goes
(a checkpoint's file, a connection that replaces another) is nothing that is held, what stays is."""
_WARM_UP = 0.4
"""Of the time: allocators fill up, buffers are reached for the first time."""
_MIB_A_MINUTE = 1.0
_OVERTIME = 10.0
"""Minutes that a run may take besides: to start and to end on a machine that has much else to do."""
_ENDS_WITHIN = 120.0
"""Seconds from the beginning of the end to the end."""


@dataclass
class Course:
    """What was held over time: (minutes, amount)."""

    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def settled(self) -> list[tuple[float, float]]:
        """Without the warm-up."""
        last = self.points[-1][0]
        return [point for point in self.points if point[0] >= _WARM_UP * last]

    @property
    def slope(self) -> float:
        """Growth a minute after the warm-up, by least squares."""
        points = self.settled
        n = len(points)
        mean_t, mean_y = (sum(point[i] for point in points) / n for i in (0, 1))
        spread = sum((t - mean_t) ** 2 for t, _ in points)
        return sum((t - mean_t) * (y - mean_y) for t, y in points) / spread if spread else 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """The highest of the first and of the last quarter after the warm-up."""
        values = [y for _, y in self.settled]
        quarter = max(1, len(values) // 4)
        return max(values[:quarter]), max(values[-quarter:])


@dataclass
class Held:
    """What was held by each process, and in shared memory by all."""

    memory: dict[str, Course] = field(default_factory=lambda: defaultdict(Course))
    descriptors: dict[str, Course] = field(default_factory=lambda: defaultdict(Course))
    threads: dict[str, Course] = field(default_factory=lambda: defaultdict(Course))
    shared: Course = field(default_factory=Course)
    """MiB."""
    files: Course = field(default_factory=Course)

    def note(self, minutes: float, looks: Sequence[Look]) -> None:
        """A window that began then, of these looks: the least of each, of those processes that were always there."""
        for who in set.intersection(*(set(look.processes) for look in looks)):
            seen = [look.processes[who] for look in looks]
            for number, courses in enumerate((self.memory, self.descriptors, self.threads)):
                courses[who].points.append((minutes, min(one[number] for one in seen)))
        if shared := min(look.shared for look in looks):  # before the first actor is there, there is none
            self.shared.points.append((minutes, shared))
            self.files.points.append((minutes, min(look.files for look in looks)))


@dataclass(frozen=True, slots=True)
class Look:
    """At one moment: who -> RSS in MiB, descriptors, threads; MiB and files of shared memory."""

    processes: Mapping[str, tuple[float, int, int]]
    shared: float
    files: int


def soak(minutes: float, world: str, say: Callable[[str], None]) -> list[str]:
    """Runs `world` for so long; what grew."""
    held = Held()
    with (
        tempfile.TemporaryDirectory(prefix="rookery-soak-") as name,
        tempfile.TemporaryDirectory(
            prefix="soak-rookery-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        ) as memory_folder,
    ):
        folder, place = Path(name), Path(memory_folder)
        popen = _start(folder, place, minutes, world)
        try:
            watch(popen.pid, place, held, lambda: popen.poll() is not None or _ends(folder), 60 * (minutes + _OVERTIME))
        finally:
            code = _finish(popen, _ends(folder))
        left = [path.name for path in place.iterdir()]
        said = (folder / "train.txt").read_text().strip().splitlines()[-1:]
    found = [f"the run ended with {code} and said {said}"] if code else []
    found += [f"shared memory left: {left}"] if left else []
    say(
        f"{world}, {minutes:g} minutes, the least of each {_WINDOW:g} s with a look every {1000 * _EVERY:g} ms, slopes "
        f"after {_WARM_UP:.0%} of the time\n"
    )
    return found + grown(held, say)


def watch(pid: int, place: Path, held: Held, over: Callable[[], bool], seconds: float, window: float = _WINDOW) -> None:
    """Looks at process `pid`, its workers and the files in `place`, one window after another, until it is `over`. A
    window in which it began to end does not count: who stops closes and opens this and that."""
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds and not over():
        family, looks = _family(pid), list[Look]()
        while not looks or time.monotonic() - began < at + window:
            looks.append(_look(family, place))
            time.sleep(_EVERY)
        if not over():
            held.note(at / 60, looks)


def _look(family: Sequence[tuple[str, psutil.Process]], place: Path) -> Look:
    seen, sizes = {}, []
    for who, process in family:
        with suppress(psutil.Error):
            seen[who] = process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
    for path in place.iterdir():
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return Look(seen, sum(sizes) / 2**20, len(sizes))


def grown(held: Held, say: Callable[[str], None]) -> list[str]:
    """Says the table of what each process held, and all of them of shared memory; what grew."""
    found = []
    say("| process | RSS MiB | slope MiB/min | descriptors | threads |\n|---|---|---|---|---|")
    for who in sorted(held.memory):
        courses = held.memory[who], held.descriptors[who], held.threads[who]
        say(f"| {who} | {_span(courses[0])} | {courses[0].slope:+.2f} | {_span(courses[1])} | {_span(courses[2])} |")
        found += _growth(who, *courses)
    shared, files = held.shared, held.files
    if not shared.points:
        return [*found, "there never was shared memory: no actor and learner came together"]
    say(f"| shared memory of all | {shared.ends[0]:.2f} → {shared.ends[1]:.2f} | {shared.slope:+.2f} | | |")
    say(f"| its files | {_span(files)} | | | |")
    for what, course in (("shared memory in MiB", shared), ("files of shared memory", files)):
        if course.ends[1] > course.ends[0]:
            found.append(f"{what} grew from {course.ends[0]:g} to {course.ends[1]:g}")
    return found


def _growth(who: str, memory: Course, descriptors: Course, threads: Course) -> list[str]:
    found = []
    if memory.slope > _MIB_A_MINUTE:
        found.append(f"{who} grows by {memory.slope:.2f} MiB a minute")
    for name, course in (("descriptors", descriptors), ("threads", threads)):
        first, last = course.ends
        if last > first:
            found.append(f"{who} had {first:.0f} {name} at first and {last:.0f} at last")
    return found


def _start(folder: Path, memory: Path, minutes: float, world: str) -> subprocess.Popen[bytes]:
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({**WORLDS[world][0], "steps": 10**12, "seconds": 60 * minutes}))
    with (folder / "train.txt").open("w") as stream:
        return subprocess.Popen(
            [require("rookery"), "train", str(config), "--run-dir", str(folder / "run"), "--no-progress"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "ROOKERY_MEMORY": str(memory)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )


def _finish(popen: subprocess.Popen[bytes], ending: bool) -> int:
    """Its exit code, once it has ended by itself where it is about to, or as it is told."""
    with suppress(subprocess.TimeoutExpired):
        return popen.wait(_ENDS_WITHIN if ending else 0.0)
    popen.send_signal(signal.SIGTERM)
    return popen.wait(120)


def _ends(folder: Path) -> bool:
    """Whether the run has begun to end."""
    with suppress(FileNotFoundError):
        return "stage=actors_draining" in (folder / "run" / "logs" / "coordinator.log").read_text()
    return False


def _family(pid: int) -> list[tuple[str, psutil.Process]]:
    """The launcher and its workers, by role and order of birth."""
    with suppress(psutil.Error):
        launcher = psutil.Process(pid)
        born: dict[str, int] = defaultdict(int)
        found = [("launcher", launcher)]
        for child in sorted(launcher.children(), key=lambda child: child.create_time()):
            with suppress(psutil.Error):
                role = _role(child.cmdline())
                found.append((f"{role} {born[role]}", child))
                born[role] += 1
        return found
    return []


def _role(command: Sequence[str]) -> str:
    return next((part.removeprefix("workers.") for part in command if part.startswith("workers.")), "other")


def _span(course: Course) -> str:
    first, last = course.ends
    return f"{first:.0f}" if round(first) == round(last) else f"{first:.0f} → {last:.0f}"


@click.command(help="One run in peace: what its processes hold stays flat.")
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--world", default="hunt", show_default=True, type=click.Choice([*WORLDS]))
def main(minutes: float, world: str) -> None:
    """Prints the table, and what grew."""
    found = soak(minutes, world, click.echo)
    click.echo("\n" + ("\n".join(found) if found else "nothing grew"))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
