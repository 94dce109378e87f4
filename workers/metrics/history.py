"""The curves of a run, in little memory however long it lasts: what the page draws.

In flow: scalars by name, at a growing step. Out flow: curves of at most `_MOST` points, each the mean of its share.
"""

from __future__ import annotations

import json
import math
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path

_MOST = 1000


class Curve:
    """Points (step, value). When there are too many, two neighbours become one."""

    def __init__(self) -> None:
        self.steps, self.values = array("d"), array("d")
        self._stride = 1
        self._open = (0, 0.0, 0.0)
        """(points, sum of steps, sum of values) of the next one."""

    def add(self, step: float, value: float) -> None:
        """One more; what is no number is left out."""
        if not math.isfinite(value):
            return
        count, steps, values = self._open
        count, steps, values = count + 1, steps + step, values + value
        if count < self._stride:
            self._open = (count, steps, values)
            return
        self._open = (0, 0.0, 0.0)
        self.steps.append(steps / count)
        self.values.append(values / count)
        if len(self.steps) >= _MOST:
            self.steps, self.values = _halved(self.steps), _halved(self.values)
            self._stride *= 2


class History:
    """All curves, by name: `MEASURE` of the run, `POLICY/MEASURE`. Written by one thread, read by others."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}
        self._lock = threading.Lock()
        self.newest: tuple[float, Mapping[str, float]] = (0.0, {})
        """The last point of all."""

    def add(self, step: float, scalars: Mapping[str, float]) -> None:
        """One more point of each of `scalars`."""
        with self._lock:
            for name, value in scalars.items():
                self._curves.setdefault(name, Curve()).add(step, value)
        self.newest = (step, dict(scalars))

    def measures(self) -> list[str]:
        """What there are curves of."""
        with self._lock:
            return sorted({name.partition("/")[2] or name for name in self._curves})

    def curves(self, measure: str) -> dict[str, tuple[list[float], list[float]]]:
        """Policy (the run itself: "") -> steps and values."""
        with self._lock:
            return {
                "" if name == measure else name.partition("/")[0]: (list(curve.steps), list(curve.values))
                for name, curve in self._curves.items()
                if name == measure or name.partition("/")[2] == measure
            }

    def read(self, path: Path, of: str = "") -> None:
        """Goes on where an earlier coordinator of this run ended, as its `metrics.jsonl` says. Of one of several runs,
        its policies are called with its name."""
        with path.open() as lines:  # one by one: of a long run they are gigabytes
            for line in lines:
                self._read_line(line, of)

    def _read_line(self, line: str, of: str) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            return  # the last line of one that was killed
        scalars = {f"{of}/{key}" if of else key: row[key] for key in row if key.endswith("_per_second")}
        policies = {name: measured for name, measured in row.items() if isinstance(measured, dict)}
        for name, measured in policies.items():
            whose = called(name, of, len(policies))
            scalars |= {f"{whose}/{key}": float(value) for key, value in measured.items()}
        self.add(row.get("rows_trained", row["agent_steps"]), scalars)


def called(policy: str, run: str, policies: int) -> str:
    """How a policy, of so many, is called beside those of other runs."""
    if not run:
        return policy
    return run if policies == 1 else f"{run} · {policy}"


def _halved(values: array[float]) -> array[float]:
    return array("d", [(a + b) / 2 for a, b in zip(values[::2], values[1::2], strict=True)])
