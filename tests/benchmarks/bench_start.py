"""How soon the default run makes its first update, how soon it ends, and what it and short commands cost.

    python -m tests.benchmarks.bench_start [--rounds N]

Each round times a bare `import torch`, then `rookery train` of the treasure hunt: until a learner has made an update
(`first_update`), the memory of all its processes three seconds later (`pss_mib`), from Ctrl-C to the prompt (`ctrl_c`);
of a second run from its last step to its end (`end`); and what commands take that start nothing. Seconds of the clock,
of commands seconds of the processor. Medians, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from protocol.memory.shared_file import read_counters
from tests.benchmarks.bench_recovery import as_installed

_PATIENCE = 120.0
_COMMANDS = (["--help"], ["presets"], ["status", "long"])
_SHORT = 300_000
"""Agent steps of the run that is waited for."""


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = [_round() for _ in range(parser.parse_args().rounds)]
    found = {key: [one[key] for one in rounds] for key in rounds[0]}
    found["beyond_import"] = [one["first_update"] - 1.1 * one["import_torch"] for one in rounds]
    told = {key: [round(f(some), 3) for f in (statistics.median, min, max)] for key, some in found.items()}
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _round() -> dict[str, float]:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=as_installed())
    found = {"import_torch": time.monotonic() - started}
    with tempfile.TemporaryDirectory(prefix="rookery-start-") as name:
        found |= _interrupted(Path(name) / "long") | _complete(Path(name) / "short")
        for command in _COMMANDS:
            found[" ".join(command)] = _processor_seconds(Path(name), command)
    return found


def _begin(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "launch", "train", "--run-dir", str(folder), "--no-progress", *options]
    return subprocess.Popen(command, env=as_installed(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _interrupted(folder: Path) -> dict[str, float]:
    started = time.monotonic()
    run = _begin(folder, "--steps", str(10**9))
    _until(run, lambda: _counted(folder, "learner-", "steps_made.") > 0)
    first = time.monotonic() - started
    time.sleep(3.0)
    tree = psutil.Process(run.pid)
    pss = sum(one.memory_full_info().pss for one in (tree, *tree.children(recursive=True)))
    asked = time.monotonic()
    run.send_signal(signal.SIGINT)
    run.wait(_PATIENCE)
    return {"first_update": first, "pss_mib": pss / 2**20, "ctrl_c": time.monotonic() - asked}


def _complete(folder: Path) -> dict[str, float]:
    run = _begin(folder, "--steps", str(_SHORT))
    _until(run, lambda: _counted(folder, "actor-", "agent_steps") >= _SHORT)
    made = time.monotonic()
    if run.wait(_PATIENCE):
        raise SystemExit(f"the run ended with {run.returncode}")
    return {"end": time.monotonic() - made}


def _until(run: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not holds():
        if run.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the run did not come so far within {_PATIENCE:g} s")
        time.sleep(0.005)


def _counted(folder: Path, worker: str, counter: str) -> float:
    """The sum of what workers of a role have counted."""
    total = 0.0
    for path in (folder / "counters").glob(f"{worker}*"):
        with suppress(OSError, ValueError):  # it begins just now
            page = read_counters(path)
            total += sum(value for key, value in page.items() if key.startswith(counter))
    return total


def _processor_seconds(folder: Path, command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "launch", *command],
        cwd=folder,
        env=as_installed(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
