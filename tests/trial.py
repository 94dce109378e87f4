"""What a short test of learning is given and has to reach: the fixture `trial`.

By default a test learns with seed 0 for as long as it says. `python -m tests.portable` asks for other seeds, a tenth of
the steps or none, and other arithmetics by ROOKERY_TRIAL, a JSON object with the keys of `Settings`, and keeps what
was reached.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["THREADS", "VARIABLE", "Result", "Settings", "Trial"]

VARIABLE = "ROOKERY_TRIAL"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_STANDSTILL = 1e-30
"""A learning rate by which no weight moves; 0 is refused."""


@dataclass(frozen=True)
class Settings:
    """How each test of a process learns."""

    seed: int = 0
    share: float = 1.0
    """Of the steps that a test says; 0: a tenth of them at a learning rate of nothing."""
    threads: int = 1
    """Of BLAS and of what torch makes in the process of the tests."""
    row: str = ""
    """What `results` are kept as."""
    results: str | None = None
    """The file of JSON lines that gets one for each test."""

    @classmethod
    def given(cls) -> Settings:
        """Those of ROOKERY_TRIAL."""
        return cls(**json.loads(os.environ.get(VARIABLE, "{}")))


@dataclass(frozen=True)
class Result:
    """A value and its bound, above which it lies (or below, where smaller is better)."""

    what: str
    value: float
    bound: float
    above: bool
    control: bool
    """Whether the value is to show that something cannot be learned."""

    @property
    def margin(self) -> float:
        """How far on the right side of the bound; negative on the wrong one."""
        return self.value - self.bound if self.above else self.bound - self.value


@dataclass
class Trial:
    """One test: its seed, its steps, its bounds."""

    test: str
    settings: Settings
    results: list[Result] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def keys(self) -> list[str]:
        """`--set` of every run, behind its own."""
        return [] if self.settings.share else [f"policy.learning_rate={_STANDSTILL}"]

    def rate(self, whole: float) -> float:
        """The learning rate where it is `whole` otherwise."""
        return whole if self.settings.share else _STANDSTILL

    def steps(self, whole: int) -> int:
        """Of a run, or updates, where they are `whole` otherwise."""
        return math.ceil(whole * (self.settings.share or 0.1))

    def reaches(self, value: float, bound: float, what: str = "") -> None:
        """Fails where what was learned earns less than `bound`."""
        self._judge(Result(what, float(value), float(bound), above=True, control=False))

    def errs_less(self, value: float, bound: float, what: str = "") -> None:
        """Fails where what was learned is further than `bound` from what is right."""
        self._judge(Result(what, float(value), float(bound), above=False, control=False))

    def stays_below(self, value: float, bound: float, what: str = "") -> None:
        """Fails where more is earned than `bound` by who is not able to learn it."""
        self._judge(Result(what, float(value), float(bound), above=False, control=True))

    def keep(self) -> None:
        """Writes the results down, if they are asked for."""
        if self.settings.results is not None:
            seconds = round(time.monotonic() - self._began, 2)
            line = {"row": self.settings.row, "test": self.test, "seconds": seconds}
            with Path(self.settings.results).open("a") as file:
                file.write(json.dumps({**line, "results": [asdict(result) for result in self.results]}) + "\n")

    def _judge(self, result: Result) -> None:
        self.results.append(result)
        told = f"value={result.value:.4g} bound={result.bound:.4g} margin={result.margin:.4g}"
        print(f"{result.what or 'learned'}: {told}")  # noqa: T201 # shown by -s and -rP, and where the test fails
        assert result.margin >= 0, f"{result.what or self.test}: {told}"
