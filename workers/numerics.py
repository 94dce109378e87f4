"""How every worker that computes sets up its arithmetic."""

from __future__ import annotations

import torch

__all__ = ["prepare"]


def prepare() -> None:
    """One thread (workers share a machine; two threads on two busy cores made a step 40 times slower), and denormal
    numbers flushed to zero, as they slow an optimiser's moments down. Call it first, in the thread that computes."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
