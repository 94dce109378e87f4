"""What keys cost a run on one machine: the same run with keys of its own and with `--open`, in turns.

    python -m tests.benchmarks.bench_keys [W1 W2 W3-lite W4] [--rounds N] [--seconds S] [--learners 16]

Prints for each workload of `rookery bench pipeline` the medians over rounds of environment steps a second, and a second
of processor time of all processes, and the ratios, keys to none, of each round; and of a run with so many learners the
seconds, and those of processor time, from its command to the first update of the last of them. Only the ratios by
processor time hold on a machine that does other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workers.tools.bench.pipeline.pipeline import watch
from workers.tools.bench.pipeline.run_under_test import started
from workers.tools.bench.pipeline.workloads import WORKLOADS, workload

_WAYS: dict[str, tuple[str, ...]] = {"keys": (), "open": ("--open",)}


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3-lite", "W4"], choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run, after it has warmed up")
    parser.add_argument("--learners", type=int, default=16, help="of the run whose start is measured; 0: none is")
    given = parser.parse_args()
    told = {
        name: compare(given.rounds, lambda way, name=name: _rates(name, given.seconds, way)) for name in given.workloads
    }
    if given.learners:
        told["start"] = compare(given.rounds, lambda way: _start(given.learners, way))
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def compare(rounds: int, measure: Any) -> dict[str, Any]:
    """Medians of what `measure` finds in each way, and the ratios of each round."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
    for number in range(rounds):
        for way in (_WAYS, reversed(_WAYS))[number % 2]:
            found[way].append(measure(way))
    told: dict[str, Any] = {}
    for key in found["keys"][0]:
        ratios = [keys[key] / none[key] for keys, none in zip(found["keys"], found["open"], strict=True)]
        told[key] = {way: statistics.median(one[key] for one in several) for way, several in found.items()}
        told[key] |= {"ratio": statistics.median(ratios), "ratios": [round(ratio, 3) for ratio in ratios]}
    return told


def _rates(name: str, seconds: float, way: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        figures = watch(Path(folder) / "run", workload(name, {})[0], 1, seconds, 2.0, *_WAYS[way])
    cores = sum(share for key, share in figures.items() if key.startswith("cpu."))
    rate = figures["env_steps_per_second"]
    return {"env_steps_a_second": rate, "env_steps_a_processor_second": rate / cores}


def _start(learners: int, way: str) -> dict[str, float]:
    data = workload("W3-lite", {"settings": {"agents": learners, "observation": 8, "actions": 4}})[0]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = {**data, "learners": "process"}
        with started(run, Path(folder) / "run", *_WAYS[way]) as running:
            running.warm(1, 0.0, 300.0)
            return {"seconds": time.monotonic() - began, "processor_seconds": sum(running.look().cpu.values())}


if __name__ == "__main__":
    main()
