"""Separate workers against the sequential reference: the same configuration, run in turn, ratios of medians.

    python -m tests.benchmarks.bench_sequential [PRESET [STEPS]] [--pairs N]

Ratios above 1 say that the pipeline is faster; both rates count, at once. Absolute rates depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_DEFAULTS = {"treasure-hunt": 12_000_000, "treasure-hunt-iqn": 300_000}
_RATES = ("env_steps_per_second", "train_steps_per_second")


def main() -> None:
    """Prints one JSON object a preset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", help=f"default: {', '.join(_DEFAULTS)}")
    parser.add_argument("steps", nargs="?", type=int)
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    chosen = {arguments.preset: arguments.steps or 1_000_000} if arguments.preset else _DEFAULTS
    for preset, steps in chosen.items():
        sys.stdout.write(json.dumps(compare(preset, steps, arguments.pairs), indent=2) + "\n")


def compare(preset: str, steps: int, pairs: int) -> dict[str, Any]:
    """Rates of both ways, medians over `pairs` interleaved pairs, and the median of the ratios pair by pair."""
    apart, alone = [], []
    for seed in range(pairs):
        apart.append(_run(preset, steps, seed, sequential=False))
        alone.append(_run(preset, steps, seed, sequential=True))
    result: dict[str, Any] = {"preset": preset, "steps": steps, "pairs": pairs}
    for rate in _RATES:
        result[rate] = {
            "workers": statistics.median(run[rate] for run in apart),
            "sequential": statistics.median(run[rate] for run in alone),
            "ratio": statistics.median(a[rate] / b[rate] for a, b in zip(apart, alone, strict=True)),
        }
    result["agent_steps_per_second"] = statistics.median(run["agent_steps_per_second"] for run in apart)
    result["last_return"] = {
        way: statistics.median(statistics.mean(curve["last"] for curve in run["returns"].values()) for run in runs)
        for way, runs in (("workers", apart), ("sequential", alone))
    }
    result["rows_trained_per_row_made"] = {
        way: statistics.median(run["rows_trained_per_row_made"] for run in runs)
        for way, runs in (("workers", apart), ("sequential", alone))
    }
    return result


def _run(preset: str, steps: int, seed: int, *, sequential: bool) -> dict[str, Any]:
    rookery = Path(sys.executable).parent / "rookery"
    with tempfile.TemporaryDirectory() as folder:
        command = [str(rookery), "train", preset, "--steps", str(steps), "--seed", str(seed), "--no-progress", "--json"]
        command += ["--run-dir", f"{folder}/run", *(["--sequential"] if sequential else [])]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    summary: dict[str, Any] = json.loads(ended.stdout)
    return summary


if __name__ == "__main__":
    main()
