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

__all__ = ["Course", "grown", "soak"]

_EVERY = 2.0
_WARM_UP = 0.4
"""Of the time: allocators fill up, buffers are reached for the first time."""
_MIB_A_MINUTE = 1.0
_OVERTIME = 10.0
"""Minutes that a run may take besides: to start and to end on a machine that has much else to do."""


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


def soak(minutes: float, world: str, say: Callable[[str], None]) -> list[str]:
    """Runs `world` for so long; what grew."""
    memory = defaultdict[str, Course](Course)
    descriptors, threads = defaultdict[str, Course](Course), defaultdict[str, Course](Course)
    shared = Course()
    with (
        tempfile.TemporaryDirectory(prefix="rookery-soak-") as name,
        tempfile.TemporaryDirectory(
            prefix="soak-rookery-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        ) as memory_folder,
    ):
        folder, place = Path(name), Path(memory_folder)
        popen = _start(folder, place, minutes, world)
        began = time.monotonic()
        try:
            while popen.poll() is None and time.monotonic() - began < 60 * (minutes + _OVERTIME):
                time.sleep(_EVERY)
                at = (time.monotonic() - began) / 60
                for who, process in _family(popen.pid):
                    with suppress(psutil.Error):
                        memory[who].points.append((at, process.memory_info().rss / 2**20))
                        descriptors[who].points.append((at, process.num_fds()))
                        threads[who].points.append((at, process.num_threads()))
                shared.points.append((at, sum(path.stat().st_size for path in place.iterdir()) / 2**20))
        finally:
            if popen.poll() is None:
                popen.send_signal(signal.SIGTERM)
            code = popen.wait(120)
        left = [path.name for path in place.iterdir()]
        said = (folder / "train.txt").read_text().strip().splitlines()[-1:]
        points = [point for point in shared.points if point[1]]  # of the time between start and end
    shared.points = points
    found = [f"the run ended with {code} and said {said}"] if code else []
    found += [f"shared memory left: {left}"] if left else []
    say(f"{world}, {minutes:g} minutes, a look every {_EVERY:g} s, slopes after {_WARM_UP:.0%} of the time\n")
    return found + grown(memory, descriptors, threads, shared, say)


def grown(
    memory: Mapping[str, Course],
    descriptors: Mapping[str, Course],
    threads: Mapping[str, Course],
    shared: Course,
    say: Callable[[str], None],
) -> list[str]:
    """Says the table of what each process held, and all of them of shared memory; what grew."""
    found = []
    say("| process | RSS MiB | slope MiB/min | descriptors | threads |\n|---|---|---|---|---|")
    for who in sorted(memory):
        held = memory[who], descriptors[who], threads[who]
        say(f"| {who} | {_span(held[0])} | {held[0].slope:+.2f} | {_span(held[1])} | {_span(held[2])} |")
        found += _growth(who, *held)
    if not shared.points:
        return [*found, "there never was shared memory: no actor and learner came together"]
    say(f"| shared memory of all | {shared.ends[0]:.2f} → {shared.ends[1]:.2f} | {shared.slope:+.2f} | | |")
    if shared.ends[1] > shared.ends[0]:
        found.append(f"shared memory grew from {shared.ends[0]:.1f} to {shared.ends[1]:.1f} MiB")
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
