"""How every worker that computes sets up its arithmetic."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Of glibc's malloc.h."""


def configure_torch() -> None:
    """One thread (workers share a machine; two threads on two busy cores made a step 40 times slower), and denormal
    numbers flushed to zero, as they slow an optimiser's moments down. What is float32 is not rounded to less, as torch
    lets cuDNN do in an LSTM. Call it first, in the thread that computes."""
    _keep_large_blocks()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.backends.cudnn.allow_tf32 = False


def _keep_large_blocks() -> None:
    """Lets glibc keep the memory that large tensors give back. Otherwise the kernel gets it and clears each page before
    it is used again: a quarter of the time of an update of W5-84 (tests/benchmarks/README.md). Does nothing where the C
    library is another one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Precision:
    """How an update computes. Parameters, moments, gradients and what networks say are float32 in any case."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Of what networks multiply, and of what their hidden layers say."""
    compiled: bool = False
    """Whether torch.compile makes the steps that are made in memory that never moves."""

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Within it networks compute in that precision; gradients are to be taken outside."""
        if self.precision == "float32":
            return nullcontext()
        # rounded weights are not kept: a captured graph must not use those of the step that it was recorded in
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


FLOAT32 = Precision()
