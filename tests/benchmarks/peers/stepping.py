"""CartPole-v1 for peers: Gymnasium's own vectorised physics, counted inside, with no cost of ours around it.

In flow: actions [E]. Out flow: what Gymnasium returns; how many steps were made, and when. Needs gymnasium, numpy and
psutil only, since a peer's environment may have nothing else of ours.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import gymnasium
import psutil

__all__ = ["COPIES", "SEGMENT", "Meter", "carts"]

COPIES, SEGMENT = 256, 64


def carts() -> Any:
    """256 carts; a copy whose episode has ended begins the next in the step after."""
    return gymnasium.make_vec("CartPole-v1", COPIES, vectorization_mode="vector_entry_point")


class Meter:
    """Counts environment steps; ends the process with one line of JSON after `windows` of `seconds`."""

    def __init__(self, name: str, windows: int = 4, seconds: float = 3.0, warm: float = 3.0) -> None:
        self._name, self._seconds, self._wanted = name, seconds, windows
        self._rates: list[float] = []
        self._peak = self._steps = 0
        self._since = time.monotonic() + warm

    def count(self, steps: int) -> None:
        """So many more environment steps."""
        self._steps += steps
        now = time.monotonic()
        if now < self._since:
            self._steps = 0
        elif now - self._since >= self._seconds:
            self._rates.append(self._steps / (now - self._since))
            self._since, self._steps = now, 0
            self._peak = max(self._peak, _pss())
            if len(self._rates) == self._wanted:
                told = {"env_steps_per_second": statistics.median(self._rates), "peak_pss_gib": self._peak / 2**30}
                sys.stdout.write(json.dumps({"peer": self._name, **told}) + "\n")
                sys.exit(0)


def _pss() -> int:
    me = psutil.Process()
    return sum(int(process.memory_full_info().pss) for process in (me, *me.children(recursive=True)))
