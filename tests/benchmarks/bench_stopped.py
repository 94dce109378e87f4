"""What an actor loses when all learners are stopped (SIGSTOP), and what a learner costs that has nothing to do.

    python -m tests.benchmarks.bench_stopped

Agent steps a second for 8 s before and for 8 s after the stop, of a world with a pace of its own, where what finds no
learner is written over (`drop_oldest` of a stream, and what a replay does by default); then the processor time of
learners whose world takes half a second a turn. Prints one JSON object.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from protocol.memory.shared_file import read_counters
from tests.flows import runs

_SECONDS = 8.0
_FLOWS: dict[str, dict[str, Any]] = {
    "drop_oldest": {"algorithm": runs.PPO, "flow": "drop_oldest"},
    "replay": {"algorithm": runs.IQN | {"buffer_capacity": 512}},
}


def main() -> None:
    """One run for each flow, and one that starves."""
    found: dict[str, Any] = {flow: _stopped(policy) for flow, policy in _FLOWS.items()}
    sys.stdout.write(json.dumps(found | {"starved": _starved()}, indent=2) + "\n")


def _stopped(policy: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rookery-stopped-") as name:
        folder = Path(name)
        with runs.training(runs.paced(folder, 10**9, pause=0.002, policy=policy), folder) as worker:
            learners = _learners(folder)
            before = _steps_per_second(folder)
            for learner in learners:
                learner.suspend()
            during = _steps_per_second(folder)
            for learner in learners:
                learner.resume()
            worker.popen.send_signal(signal.SIGINT)
            worker.wait(60)
    return {"before": round(before), "stopped": round(during), "drop": round(1 - during / before, 3)}


def _starved() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rookery-stopped-") as name:
        folder = Path(name)
        with runs.training(runs.paced(folder, 10**9, pause=0.5), folder) as worker:
            learners = _learners(folder)
            before, start = [sum(one.cpu_times()[:2]) for one in learners], time.monotonic()
            time.sleep(_SECONDS)
            spent = max(sum(one.cpu_times()[:2]) - was for one, was in zip(learners, before, strict=True))
            share = spent / (time.monotonic() - start)
            worker.popen.send_signal(signal.SIGINT)
            worker.wait(60)
    return {"processor_share": round(share, 3)}


def _learners(folder: Path) -> list[psutil.Process]:
    """Of a run that has begun its work."""
    runs.until(lambda: runs.agent_steps(folder) > 0 and len(runs.workers_of(folder)) == 4, what="the run is on")
    time.sleep(3.0)
    return [psutil.Process(pid) for name, pid in runs.workers_of(folder).items() if name.startswith("learner")]


def _steps_per_second(folder: Path) -> float:
    begin, at = _steps(folder), time.monotonic()
    time.sleep(_SECONDS)
    return (_steps(folder) - begin) / (time.monotonic() - at)


def _steps(folder: Path) -> float:
    """As the actor counts them itself."""
    return sum(read_counters(page)["agent_steps"] for page in (folder / "run" / "counters").glob("actor-0.*"))


if __name__ == "__main__":
    main()
