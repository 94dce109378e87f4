"""The whole pipeline while it learns, beside what two cores could do at most.

In flow: the name of a workload (workloads.py). Out flow: figures by key, medians of windows after a warm-up.

`env_steps_per_second`, `agent_steps_per_second`, `train_steps_per_second`: made by all workers together.
`two_core_bound`: environment steps a second if two cores only stepped, acted and updated (cpu_bound.py), half of it
measured before the run and half after; `bare.*_us` are its parts. `ratio_to_bound`: what share of it was reached.
`ratio_by_processor`: the same for the processor time that the run got, which on a busy machine is less than two cores.
`samples_trained_per_made`: rows that were trained on over rows that actors made, of all windows together.
`lag`: publications that the rows which were trained on were behind, on average.
`peak_pss_gib`: greatest memory of all processes, shared memory counted once.
`cpu.WORKER`: share of a core that workers of this kind used.
`return_first`, `return_last`: of the first and the last episodes of the run that were told, the mean over policies.

W4 also says what the same run makes in one process (`sequential.*`), the ratios to that, and to what each half would
make alone on its core (`isolated.*`).
"""

from __future__ import annotations

import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from workers.tools.bench.pipeline.cpu_bound import Bare, Parts
from workers.tools.bench.pipeline.run_under_test import Look, RunUnderTest, started
from workers.tools.bench.pipeline.workloads import PRESETS, workload

_WARM_UPDATES = 16
_PATIENCE = 300.0
_RATES = {"env_steps": "env_steps", "agent_steps": "agent_steps", "train_steps": "steps_made"}


def measure(name: str, windows: int, seconds: float, warm: float, environment: dict[str, Any]) -> dict[str, float]:
    """`windows` of so many `seconds`, `warm` seconds after the first updates. `environment`: settings that are put over
    the workload's."""
    data, run = workload(name, environment)
    bare = Bare(run)
    try:
        bare.warm(_WARM_UPDATES)
        before = bare.measure(windows, seconds / 4)
        with tempfile.TemporaryDirectory() as folder:
            figures = watch(Path(folder) / "apart", data, windows, seconds, warm)
            if name in PRESETS:
                alone = watch(Path(folder) / "alone", data, windows, seconds, warm, "--sequential")
        after = bare.measure(windows, seconds / 4)
    finally:
        bare.close()
    bound = statistics.mean((before.bound, after.bound))
    ratio = figures["env_steps_per_second"] / bound
    cores = sum(share for key, share in figures.items() if key.startswith("cpu."))
    ratios = {"two_core_bound": bound, "ratio_to_bound": ratio, "ratio_by_processor": ratio * 2 / cores}
    found = {**figures, **ratios, **_parts(before, after)}
    return {**found, **_beside(figures, alone, before, after)} if name in PRESETS else found


def watch(
    folder: Path, data: dict[str, Any], windows: int, seconds: float, warm: float, *options: str
) -> dict[str, float]:
    """The figures of a run of the configuration `data`, without the bound; it ends with them."""
    with started(data, folder, *options) as running:
        running.warm(_WARM_UPDATES, warm, _PATIENCE)
        looks = running.windows(windows, seconds)
        return {**_rates(looks), **_ended(running, looks)}


def _rates(looks: list[Look]) -> dict[str, float]:
    """Medians of the windows between the looks."""
    pairs = list(pairwise(looks))
    return {
        f"{key}_per_second": statistics.median((b.counted[kind] - a.counted[kind]) / (b.at - a.at) for a, b in pairs)
        for key, kind in _RATES.items()
    }


def _ended(running: RunUnderTest, looks: list[Look]) -> dict[str, float]:
    first, last = looks[0], looks[-1]
    counted = {kind: last.counted[kind] - first.counted[kind] for kind in last.counted}
    cpu = {
        f"cpu.{worker}": (spent - first.cpu.get(worker, 0.0)) / (last.at - first.at)
        for worker, spent in sorted(last.cpu.items())
    }
    running.end()
    return {
        "samples_trained_per_made": counted["rows_trained"] / counted["agent_steps"],
        "lag": counted["lag_sum"] / max(1, counted["lag_rows"]),
        "peak_pss_gib": running.peak_pss / 2**30,
        **cpu,
        **running.returns(),
    }


def _parts(before: Parts, after: Parts) -> dict[str, float]:
    """Microseconds of one core for an environment step."""
    return {
        f"bare.{part}_us": 1e6 * statistics.mean((getattr(before, part), getattr(after, part)))
        for part in ("environment", "forward", "update")
    }


def _beside(apart: dict[str, float], alone: dict[str, float], before: Parts, after: Parts) -> dict[str, float]:
    """The two rates beside those of one process, and of each half alone on a core."""
    acting = statistics.mean(1 / (parts.environment + parts.forward) for parts in (before, after))
    learning = statistics.mean(parts.train_steps / parts.update for parts in (before, after))
    isolated = {"env_steps_per_second": acting, "train_steps_per_second": learning}
    found: dict[str, float] = {}
    for rate in ("env_steps_per_second", "train_steps_per_second"):
        found[f"sequential.{rate}"] = alone[rate]
        found[f"sequential.{rate}.ratio"] = apart[rate] / alone[rate]
        found[f"isolated.{rate}"] = isolated[rate]
        found[f"isolated.{rate}.ratio"] = apart[rate] / isolated[rate]
    found["sequential.samples_trained_per_made"] = alone["samples_trained_per_made"]
    return found
