"""What a run costs by its size, and what that says of sizes that no machine here has.

    python -m tests.benchmarks.bench_scale [--actors 1,2,4,8] [--replaying 200] [--seconds 6]

Runs of treasure-hunt with everything by TCP: a coordinator, one learner of both policies, and so many actors; then one
with actors that replay recorded segments (tests/benchmarks/replaying.py), each at a slow pace. Counted is processor
time, which neighbours on the machine do not change much. One JSON object: `costs` in microseconds, of the run with one
actor; `runs`, each with what these costs predict for it beside what it took; `sizes`, what saturates where.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from protocol.config.run import Run
from protocol.experience.ring_buffer import Ring
from protocol.memory.shared_file import read_counters
from tests.benchmarks.scale_model import Costs, sizes
from tests.flows import runs
from workers.environments.registry import describe
from workers.planning.policy_plan import plan_policies

_COPIES, _STEPS_FOR_EVER, _PERIOD, _HERDS = 8, 10**12, 4.0, 2
_PATIENCE = 300.0
Figures = dict[str, Any]

__all__ = ["record"]


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", default="1,2,4,8")
    parser.add_argument("--replaying", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=6.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rookery-scale-") as name:
        folder = Path(name)
        found = [_real(folder, int(count), given.seconds) for count in given.actors.split(",")]
        if given.replaying:
            found.append(_replayed(folder, given.replaying, given.seconds))
    costs = Costs.of(found[0], found[-1])
    for figures in found:
        figures["predicted_processor_seconds"] = round(costs.processor(figures), 3)
    told = {"costs": costs.told(), "runs": found, "sizes": sizes(costs)}
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _config(actors: int, steps: int) -> Figures:
    return {
        "environment": {"copies": _COPIES},
        "policy": {
            "algorithm": {"name": "ppo", "epochs": 1, "minibatches": 2, "segments": 4 * _COPIES},
            "publish_interval": 4,
        },
        "actors": actors,
        "num_learner_processes": 1,
        "transport": "tcp",
        "steps": steps,
        "actor_timeout": 60,
    }


def _real(folder: Path, actors: int, seconds: float) -> Figures:
    """Actors that act, as fast as they can; the first such run leaves a recording."""
    with _workers(folder / f"real-{actors}", _config(actors, _STEPS_FOR_EVER)) as (own, begin):
        for number in range(actors):
            begin("actor", f"actor-{number}")
        runs.until(lambda: _count(own, "received") >= 20 * actors, _PATIENCE, "the run is on")
        figures = _measured(own, actors, seconds)
        if not (folder / "recorded.npz").exists():
            record(_config(1, 1), own / "memory", folder / "recorded.npz")
    return figures


def _replayed(folder: Path, actors: int, seconds: float) -> Figures:
    """Actors that replay at a slow pace, to the end of the run, whose books are looked at."""
    blocks = 3
    run = plan_policies(Run.model_validate(_config(1, 1)), describe(Run.model_validate(_config(1, 1)).environment))
    steps = actors * blocks * sum(plan.block * plan.layout.length for plan in run.values())
    with _workers(folder / "replayed", _config(actors, steps)) as (own, begin):
        for herd in range(_HERDS):
            share = actors // _HERDS + (herd < actors % _HERDS)
            begin("replaying", f"herd-{herd}", str(folder / "recorded.npz"), str(share), str(_PERIOD))
        runs.until(lambda: _count(own, "received") >= actors, _PATIENCE, "segments arrive")
        figures = _measured(own, actors, seconds)
        runs.until((own / "run" / "summary.json").exists, _PATIENCE, "the run ends")
        segments = runs.summary_of(own)["segments"]
        lost = sum(segments["dropped"].values()) + segments["lost_in_learner"] + segments["unexplained"]
        figures |= {"produced": segments["produced"], "lost": lost, "exact": runs.balanced(segments)}
    return figures


def _measured(own: Path, actors: int, seconds: float) -> Figures:
    """Processor seconds of each role, and what was done in them."""
    before, start = _look(own), time.monotonic()
    time.sleep(seconds)
    after, took = _look(own), time.monotonic() - start
    spent = {name: round(after[name] - before[name], 3) for name in after}
    return {"actors": actors, "seconds": round(took, 2), **spent}


def _look(own: Path) -> dict[str, float]:
    times = {"coordinator": 0.0, "learner": 0.0, "actor": 0.0}
    for path in own.glob("*.pid"):
        used = psutil.Process(int(path.read_text())).cpu_times()
        times[path.name.partition("-")[0]] += used.user + used.system
    return {**{f"{role}_processor_seconds": value for role, value in times.items()},
            "segments": _count(own, "received"), "agent_steps": _count(own, "agent_steps")}  # fmt: skip


def _count(own: Path, kind: str) -> float:
    pages = [read_counters(path) for path in (own / "run" / "counters").glob("[!.]*")]
    return float(sum(value for page in pages for name, value in page.items() if name.partition(".")[0] == kind))


def record(config: Figures, memory: Path, target: Path) -> None:
    """A block of each policy from the memory of an actor that goes on acting."""
    run, arrays = Run.model_validate(config), {}
    for name, plan in plan_policies(run, describe(run.environment)).items():
        path = next(memory.glob(f"*-actor-0.1-{name}.ring"))
        ring, slots = Ring.attach(path, plan.layout), slice(0, plan.block)

        def whole(ring: Ring = ring, slots: slice = slots) -> dict[str, Any]:
            records = ring.segments(slots)
            columns = {field: column[slots].copy() for field, column in ring.columns.items()}
            return columns if len(records) == slots.stop and ring.current(records).all() else {}

        arrays.update({f"{name}/{field}": column for field, column in runs.until(whole).items()})
        ring.close()
    np.savez(target, **arrays)


@contextmanager
def _workers(own: Path, config: Figures) -> Iterator[tuple[Path, Any]]:
    """A coordinator and a learner, and a way to begin others; all end with it."""
    (own / "memory").mkdir(parents=True)
    with ExitStack() as stack:

        def begin(role: str, name: str, *more: str) -> None:
            told = own / "run" / "coordinator.json"
            address = json.loads(told.read_text())["address"] if told.exists() else ""
            where = [runs.PYTHON, "-m", "tests.benchmarks.replaying", address, *more]
            command = where if role == "replaying" else [role, "--coordinator", address, *more]
            worker = stack.enter_context(runs.started(command, own, name, ["env", f"ROOKERY_MEMORY={own / 'memory'}"]))
            kind = {"replaying": "actor"}.get(role, role)
            (own / f"{kind}-{name}.pid").write_text(str(worker.popen.pid))

        coordinator = [
            "coordinator",
            "--open",
            str(runs.write(config, own)),
            "--run-dir",
            str(own / "run"),
            "--bind",
            "127.0.0.1:0",
        ]
        worker = stack.enter_context(runs.started(coordinator, own, "coordinator"))
        (own / "coordinator-.pid").write_text(str(worker.popen.pid))
        runs.until((own / "run" / "coordinator.json").exists, _PATIENCE, "the coordinator is up")
        begin("learner", "learner")
        yield own, begin


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
