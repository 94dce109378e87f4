"""What a learner's computation is done by: torch's operations one by one, or what torch.compile makes of them.

In flow: functions of tensors. Out flow: what they return, computed by one kernel for many operations where there is a
compiler (g++ for a CPU, Triton for CUDA). Where there is none, or one that fails, the functions run as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["EAGER", "Computing"]

log = logging.getLogger(__name__)

BACKEND = "inductor"
_KINDS = 64
"""Sets of shapes that one function is compiled for, instead of torch's 8: several kinds of policies share a process."""
P = ParamSpec("P")
R = TypeVar("R")


class Computing:
    """`compiled`: calls what torch.compile makes, until that fails once. Shapes are taken as they are, never as ones
    that may vary: each is compiled for once, and another one anew."""

    def __init__(self, compiled: bool = False) -> None:
        self._compiled = compiled
        self._made: dict[Callable[..., object], Callable[..., object]] = {}

    def call(self, function: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """What `function` returns. Use it within `attempt`."""
        if not self._compiled:
            return function(*given, **named)
        made = self._made.get(function)
        if made is None:
            torch._dynamo.config.recompile_limit = _KINDS
            made = self._made[function] = torch.compile(function, backend=BACKEND, dynamic=False, fullgraph=True)
            log.info("event=compiling function=%s", function.__name__)
        return made(*given, **named)  # type: ignore[return-value] # what the function returns

    def attempt(self, work: Callable[[], None]) -> None:
        """Does `work`; where compiling fails in it, once more without. Up to there nothing may have been done that
        cannot be done again."""
        if not self._compiled:
            work()
            return
        try:
            work()
        except RuntimeError as fault:  # of dynamo, its backend or the compiler; others come back in the second try
            self._compiled = False
            reason = " ".join(str(fault).split())[:200]
            log.warning("event=compile_failed reason=%s remedy=updates are computed one operation at a time", reason)
            work()


EAGER = Computing()
