"""What one evaluation found, as it is kept: a line of `evaluations.jsonl` for each environment and policy.

In flow: the returns of episodes. Out flow: lines of JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.intervals import interval

FILE = "evaluations.jsonl"


@dataclass(frozen=True, slots=True)
class Score:
    """What one policy earned in one environment. `low` and `high` bound the mean in a 95 % interval; None of a single
    episode."""

    environment: str
    policy: str
    agents: tuple[str, ...]
    episodes: int
    seed: int
    mean: float
    low: float | None
    high: float | None
    least: float
    greatest: float

    def line(self, **told: Any) -> dict[str, Any]:
        """For a file or a program; `told` goes before."""
        return {**told, **asdict(self)}


def score(environment: str, policy: str, earned: dict[str, NDArray[np.float64]], copies: int, seed: int) -> Score:
    """`earned`: agent -> returns [E * C, N], of `copies` E. What agents of one policy earn in one episode is one
    number, their mean: they are not independent of each other."""
    each = [one.reshape(copies, -1, one.shape[1]).mean(1) for one in earned.values()]
    scores = np.mean(each, axis=0).ravel()
    found = interval(scores)
    return Score(
        environment=environment,
        policy=policy,
        agents=tuple(earned),
        episodes=len(scores),
        seed=seed,
        mean=float(found.value),
        low=None if np.isnan(found.low) else float(found.low),
        high=None if np.isnan(found.high) else float(found.high),
        least=float(scores.min()),
        greatest=float(scores.max()),
    )


def append(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Adds `lines` to the run's folder, all of them at once: who reads at the same time never sees half a line."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def newest(folder: Path) -> dict[str, dict[str, float]]:
    """policy -> environment -> mean of the newest evaluation that the run in `folder` made of itself."""
    found: dict[str, dict[str, float]] = {}
    for line in map(json.loads, (folder / FILE).read_text().splitlines() if (folder / FILE).is_file() else ()):
        if line["source"] == "run":
            found.setdefault(line["policy"], {})[line["environment"]] = line["mean"]
    return found
