"""What torch.compile makes of a step: one kernel for many operations, for each set of shapes once.

In flows: functions of tensors, and the steps that call them. Out flow: what the functions return. Where there is no
compiler (a C++ compiler for a CPU, Triton for CUDA), or one that fails, they run as they are, one operation at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch

log = logging.getLogger(__name__)

BACKEND: Any = "inductor"
_KINDS = 64
"""Sets of shapes that one function is compiled for, instead of torch's 8: policies of many kinds share a process."""
P = ParamSpec("P")
R = TypeVar("R")


class StepCompiler:
    """Of one process. Shapes are taken as they are, never as ones that may vary: each set is compiled for once. `began`
    and `ended` are called around each compilation, which may take minutes."""

    def __init__(
        self, began: Callable[[], None] = lambda: None, ended: Callable[[], None] = lambda: None, wanted: bool = True
    ) -> None:
        self._began, self._ended, self._wanted = began, ended, wanted
        self._made: dict[Callable[..., object], Callable[..., object]] = {}

    def call(self, function: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """What `function` returns. Use it within `run_or_fall_back`."""
        if not self._wanted:
            return function(*given, **named)
        made = self._made.get(function)
        if made is None:
            if not self._made:
                self._set_up()
            made = self._made[function] = torch.compile(function, backend=BACKEND, dynamic=False, fullgraph=True)
            log.info("event=compiling function=%s", function.__name__)
        return cast(R, made(*given, **named))

    def run_or_fall_back(self, step: Callable[[], None]) -> None:
        """Makes `step`; where compiling fails in it, once more without. Until then nothing may have been done that
        cannot be done again."""
        if not self._wanted or _recording():
            step()
            return
        try:
            step()
        except RuntimeError as fault:  # of torch or the compiler; what is none of theirs comes back from the second try
            self._wanted = False
            reason = " ".join(str(fault).split())[:200]
            log.warning("event=compile_failed reason=%s remedy=updates run one operation at a time", reason)
            step()

    def _set_up(self) -> None:
        torch._dynamo.config.cache_size_limit = _KINDS
        # kernels are compiled by this process alone: torch's helpers would outlive one that is killed
        torch._inductor.config.compile_threads = 1
        torch._dynamo.on_compile_start(lambda *_: self._began())
        torch._dynamo.on_compile_end(lambda *_: self._ended())


def _recording() -> bool:
    """Whether a CUDA graph is recorded: all is compiled by then, and what fails is the recorder's."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


EAGER = StepCompiler(wanted=False)
"""Functions run as they are."""
