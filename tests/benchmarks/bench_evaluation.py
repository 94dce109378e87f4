"""What evaluating without a pause costs the training beside it, in one run.

    python -m tests.benchmarks.bench_evaluation [--rounds N] [--seconds S]

Training is kept on one core. In turn the evaluation is stopped (A), goes on at another core that is free (B), or at
the same core as training (C). In each are counted the agent steps a second, and a second of processor time of the
actor and the learner, which is what evaluation costs on a machine that does other work too, as whoever waits for a core
uses none. `free_core_costs` is what B lacks of A, which should be 0.05 at most; `same_core_costs` what C lacks, at most
the `share` of one process among those on the core; `evaluation_took` is its part of their processor time in C. Medians
over rounds, whose order alternates; costs are those within a round.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from protocol.memory.shared_file import read_counters
from tests.flows.runs import config
from tests.tools import ROOT, require
from tests.waiting import until

_PATIENCE = 180.0
_KINDS = ("A", "B", "C")
_TRAINING = ("actor-0", "learner-0")


class Rates(NamedTuple):
    """Agent steps a second, and a second of the training's processor time; which part of the processor time of training
    and evaluation was the evaluation's."""

    a_second: float
    a_processor_second: float
    evaluation: float


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    found: dict[str, list[Rates]] = {kind: [] for kind in _KINDS}
    with tempfile.TemporaryDirectory(prefix="rookery-evaluation-") as name, _training(Path(name)) as folder:
        for number in range(given.rounds):
            for kind in _KINDS if number % 2 == 0 else _KINDS[::-1]:
                found[kind].append(_rates(folder, kind, given.seconds))
    told: dict[str, Any] = {"rounds": given.rounds, "share": round(1 / 3, 4)}
    told["evaluation_took"] = round(statistics.median(one.evaluation for one in found["C"]), 4)
    for key in ("a_second", "a_processor_second"):
        rates = {kind: [getattr(one, key) for one in moments] for kind, moments in found.items()}
        told[key] = {kind: round(statistics.median(values)) for kind, values in rates.items()}
        for kind, name in (("B", "free_core_costs"), ("C", "same_core_costs")):
            costs = [1 - x / y for x, y in zip(rates[kind], rates["A"], strict=True)]
            told[key][name] = round(statistics.median(costs), 4)
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _rates(folder: Path, kind: str, seconds: float) -> Rates:
    """Of a while of this kind."""
    members = json.loads((folder / "run" / "state.json").read_text())["members"]
    pids = {member["name"]: member["pid"] for member in members if member["role"] != "supervisor"}
    first, *others = sorted(os.sched_getaffinity(0))
    evaluation = pids["evaluator-0"]
    for name, pid in pids.items():
        _keep(pid, others[0] if others and name == "evaluator-0" and kind != "C" else first)
    os.kill(evaluation, signal.SIGSTOP if kind == "A" else signal.SIGCONT)
    time.sleep(0.3)
    made, spent, aside, began = _made(folder), _spent(pids, *_TRAINING), _spent(pids, "evaluator-0"), time.monotonic()
    time.sleep(seconds)
    made, took = _made(folder) - made, time.monotonic() - began
    spent, aside = _spent(pids, *_TRAINING) - spent, _spent(pids, "evaluator-0") - aside
    os.kill(evaluation, signal.SIGCONT)
    return Rates(made / took, made / spent, aside / (spent + aside))


def _spent(pids: dict[str, int], *names: str) -> float:
    """Seconds of processor time so far."""
    times = [psutil.Process(pids[name]).cpu_times() for name in names]
    return sum(one.user + one.system for one in times)


def _made(folder: Path) -> float:
    return read_counters(folder / "run" / "counters" / "actor-0.1")["agent_steps"]


def _keep(pid: int, core: int) -> None:
    """All threads of a process on one core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


@contextmanager
def _training(folder: Path) -> Iterator[Path]:
    """A run of one actor and one learner that is evaluated all the time, whose folder is `folder/run`."""
    data = config(
        steps=10**12, num_learner_processes=1, evaluation={"every_steps": 1, "episodes": 8}, actor_timeout=60.0
    )
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(data))
    with (folder / "train.txt").open("w") as stream:
        popen = subprocess.Popen(
            [require("rookery"), "train", str(file), "--run-dir", str(folder / "run"), "--no-progress"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        until(lambda: (folder / "run" / "evaluations.jsonl").exists(), _PATIENCE, "it is evaluated")
        yield folder
    finally:
        popen.send_signal(signal.SIGTERM)
        popen.wait(60)


if __name__ == "__main__":
    main()
