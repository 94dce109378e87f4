"""How soon a worker is at work again after kill -9, in a run that trains.

    python -m tests.benchmarks.bench_recovery [--kills N] [--role ROLE]...

For an actor until the first segment of the next incarnation, for a learner until its first update, for the coordinator
until it has written down the run again, with the longest time in which no step was made meanwhile. A bare `import
torch` is started beside the run at the moment of each kill: what is left beyond it is Rookery's own. Medians, in s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from protocol.memory.shared_file import read_counters
from tests.chaos.worlds import configuration
from tests.flows.runs import workers_of
from tests.tools import ROOT, require
from tests.waiting import until

_PATIENCE = 180.0
_TARGETS = {"actor": 3.0, "learner": 5.0, "coordinator": 3.0}


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--role", choices=list(_TARGETS), action="append", help="only this; may be repeated")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rookery-recovery-") as name, _training(Path(name)) as folder:
        found = {role: [_death(folder, role) for _ in range(asked.kills)] for role in asked.role or _TARGETS}
    result = {role: _summary(role, deaths) for role, deaths in found.items()}
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


def _summary(role: str, deaths: list[dict[str, float]]) -> dict[str, float]:
    names = deaths[0].keys()
    return {name: round(statistics.median(death[name] for death in deaths), 2) for name in names} | {
        "target": _TARGETS[role],
        "kills": len(deaths),
    }


@contextmanager
def _training(folder: Path) -> Iterator[Path]:
    """A run of one actor and two learners, whose folder is `folder/run`."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({**configuration("hunt", 10**12, 0), "actors": 1, "actor_timeout": 10.0}))
    with (folder / "train.txt").open("w") as stream:
        popen = subprocess.Popen(
            [require("rookery"), "train", str(config), "--run-dir", str(folder / "run"), "--no-progress"],
            cwd=folder,
            env=as_installed(),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        until(lambda: _steps(folder) > 10_000 and len(workers_of(folder)) == 4, _PATIENCE, "the run is on")
        yield folder
    finally:
        popen.send_signal(signal.SIGTERM)
        popen.wait(60)


def as_installed() -> dict[str, str]:
    """The environment of processes that keep their bytecode, as an installation does."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}


def _death(folder: Path, role: str) -> dict[str, float]:
    """Kills a worker and waits until its successor has done something."""
    until(lambda: len(workers_of(folder)) == 4, _PATIENCE, "everybody is there")
    time.sleep(10.0)  # it has worked for a while, and has a checkpoint
    name = {"actor": "actor-0", "learner": "learner-agent_0"}.get(role, role)
    pid = workers_of(folder)[name]
    incarnation = _newest(folder, name)
    ready: dict[str, Callable[[], bool]] = {
        "actor": lambda: _done(folder, name, incarnation, "produced."),
        "learner": lambda: _done(folder, name, incarnation, "steps_made."),
        "coordinator": lambda: _back(folder, pid),
    }
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    bare = subprocess.Popen([sys.executable, "-c", "import torch"], env=as_installed())
    imported, gap, moved_at, steps = 0.0, 0.0, killed, _steps(folder)
    while not ready[role]():
        now = time.monotonic()
        if now - killed > _PATIENCE:
            raise SystemExit(f"{role} did not come back within {_PATIENCE:g} s; see {folder}")
        if (made := _steps(folder)) != steps:
            steps, moved_at = made, now
        gap = max(gap, now - moved_at)
        imported = imported or (now - killed if bare.poll() is not None else 0.0)
        time.sleep(0.02)
    seconds = time.monotonic() - killed
    bare.wait()
    imported = imported or time.monotonic() - killed
    beyond = seconds if role == "coordinator" else max(0.0, seconds - imported)
    return {"seconds": seconds, "import_torch": imported, "beyond": beyond, "longest_without_a_step": gap}


def _pages(folder: Path, name: str) -> dict[int, dict[str, float]]:
    """Incarnation -> its counters, of the worker `name`."""
    found: dict[int, dict[str, float]] = {}
    for path in (folder / "run" / "counters").glob(f"{name}.*"):
        with suppress(OSError, ValueError):
            found[int(path.name.rpartition(".")[2])] = read_counters(path)
    return found


def _newest(folder: Path, name: str) -> int:
    return max(_pages(folder, name), default=0)


def _done(folder: Path, name: str, before: int, counter: str) -> bool:
    """Whether an incarnation after `before` has counted anything there."""
    pages = {number: page for number, page in _pages(folder, name).items() if number > before}
    return any(value > 0 for page in pages.values() for key, value in page.items() if key.startswith(counter))


def _back(folder: Path, pid: int) -> bool:
    """Whether another coordinator has the run, and everybody."""
    here: dict[str, Any] = workers_of(folder)
    if here.get("coordinator", pid) == pid or len(here) < 4:
        return False
    state = folder / "run" / "state.json"
    return state.stat().st_mtime > (folder / "run" / "coordinator.json").stat().st_mtime


def _steps(folder: Path) -> int:
    return int(sum(page.get("agent_steps", 0) for page in _pages(folder, "actor-0").values()))


if __name__ == "__main__":
    main()
