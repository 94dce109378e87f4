"""What runs measured over time, brought to one scale, and runs that differ by their seed alone brought together.

In flow: run folders. Out flow: `CurveGroup`s of curves with the bounds of their intervals. Without matplotlib.

Legend: `P` points of a curve, `n` runs of a group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.yaml_file import check_run_folder, read_mapping
from protocol.intervals import Estimate, interquartile_mean, interval

_POINTS = 100
_SMOOTH = 0.02
"""Share of a curve's length over which what was measured is averaged: half-second means jump about."""
_KEYS = 3
"""By which runs are called, at most."""
_SCALES = {"time", "env_steps", "agent_steps", "rows_trained"}
Points = tuple[NDArray[np.float64], NDArray[np.float64]]
"""(steps [P], values [P])."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its folder and configuration, curves by (policy or "", name), and the lines of its evaluations."""

    folder: Path
    config: Mapping[str, Any]
    curves: Mapping[tuple[str, str], Points]


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """Runs of one configuration but for the seed."""

    name: str
    runs: tuple[Measured, ...]

    def curves(self) -> list[tuple[str, str]]:
        """Names of those that any of its runs has."""
        return list(dict.fromkeys(key for run in self.runs for key in run.curves))

    def curve(self, key: tuple[str, str]) -> tuple[NDArray[np.float64], Estimate]:
        """(steps [P], interquartile means [P] with their intervals) of the runs that have it, over the steps that all
        of these have."""
        told = [run.curves[key] for run in self.runs if key in run.curves]
        first, last = max(steps[0] for steps, _ in told), min(steps[-1] for steps, _ in told)
        grid = np.linspace(first, max(first, last), _POINTS)
        values = np.stack([np.interp(grid, steps, smooth(found)) for steps, found in told])
        return grid, interval(values, interquartile_mean)


def read_run(folder: Path) -> Measured:
    """What the run in `folder` measured so far; ConfigurationError if it is no run's."""
    check_run_folder(folder)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    config = read_mapping(folder / "config.yaml")
    for row in _lines(folder / "metrics.jsonl"):
        at = float(row.get("rows_trained", row["agent_steps"]))  # without actors nobody makes steps
        for name, value in row.items():
            for measure, told in value.items() if isinstance(value, dict) else [(name, value)]:
                if measure not in _SCALES and not measure.startswith("evaluation/"):  # from their own file
                    _enter(found, (name if isinstance(value, dict) else "", measure), at, told)
    for line in evaluations(folder):
        _enter(found, (line["policy"], f"evaluation/{line['environment']}"), line["agent_steps"], line["mean"])
    curves = {
        key: (np.array([p[0] for p in points]), np.array([p[1] for p in points])) for key, points in found.items()
    }
    return Measured(folder, config, curves)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """Those that the run in `folder` made of itself so far, a line for each environment and policy."""
    return [line for line in _lines(folder / "evaluations.jsonl") if line.get("source") == "run"]


def groups_of(runs: Iterable[Measured]) -> list[CurveGroup]:
    """Runs whose configurations differ by the seed alone are one group. Where there are several groups, the keys in
    which they differ tell them apart, or their folders where those are many."""
    runs = list(runs)
    together: dict[str, list[Measured]] = {}
    for run in runs:
        together.setdefault(json.dumps({**run.config, "seed": None}, sort_keys=True), []).append(run)
    flat = [_flat(members[0].config) for members in together.values()]
    keys = sorted({key for one in flat for key in one if key != "seed" and any(one[key] != o.get(key) for o in flat)})
    found = []
    for one, members in zip(flat, together.values(), strict=True):
        folder = members[0].folder.resolve()
        said = ", ".join(f"{key}={one.get(key)}" for key in keys)
        if not 0 < len(keys) <= _KEYS:
            said = folder.parent.name if folder.name == f"seed-{members[0].config.get('seed')}" else folder.name
        found.append(CurveGroup(said if len(members) == 1 else f"{said} ({len(members)} runs)", tuple(members)))
    return found


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[P] -> [P]: means over a window around each point, which is cut at the ends."""
    half = int(len(values) * _SMOOTH / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low = np.maximum(np.arange(len(values)) - half, 0)
    high = np.minimum(np.arange(len(values)) + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def _enter(
    found: dict[tuple[str, str], list[tuple[float, float]]], key: tuple[str, str], at: float, value: Any
) -> None:
    if isinstance(value, int | float) and np.isfinite(value):
        found.setdefault(key, []).append((at, float(value)))


def _lines(path: Path) -> list[dict[str, Any]]:
    """Those that are whole: a run that goes on may be writing the last one, and one that was killed and goes on has
    left a torn one before."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """a.b.c -> value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
