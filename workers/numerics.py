"""How every worker that computes sets up its arithmetic."""

from __future__ import annotations

from typing import Literal

import torch

__all__ = ["multiply_in", "prepare"]


def prepare() -> None:
    """One thread (workers share a machine; two threads on two busy cores made a step 40 times slower), and denormal
    numbers flushed to zero, as they slow an optimiser's moments down. Call it first, in the thread that computes."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def multiply_in(precision: Literal["float32", "bfloat16"]) -> None:
    """What torch rounds the factors of float32 matrix products to, where that makes them faster; sums stay float32."""
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "medium")
