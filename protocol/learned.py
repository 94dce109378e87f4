"""The keys that everything trained has, be it a policy or an auxiliary: its optimiser, its ring, its publication."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocol.section import Section

__all__ = ["Learned"]


class Learned(Section):
    """What a learner's member is told, whatever it learns."""

    learning_rate: float = Field(default=0.00025, gt=0)
    """Of Adam; at the start, where it is annealed."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Norm to which the gradient of an update is clipped."""
    credits: int | None = Field(default=None, ge=1)
    """Segments an actor may have unacknowledged, a multiple of `environment.copies`; None: twice its streams."""
    compress: tuple[str, ...] = ()
    """Fields of segments that travel compressed (zstd) to other nodes."""
    ring: Literal["lock_free", "locked"] = "lock_free"
    """How a learner on the same node reads an actor's memory: it checks each copy, or (the reference) it locks besides,
    so that no slot is taken from under a copy; the actor then waits for its learners, up to `lock_timeout`."""
    checksums: bool | None = None
    """Check every copy by CRC-32 as well; None: only where a processor shows stores in another order."""
    publish_mode: Literal["double_buffer", "snapshot"] = "snapshot"
    """Weights in shared memory: two copies and a flip, or one copy."""
    wire_weights: Literal["float32", "bf16"] = "float32"
    """How float32 weights travel to other nodes: exactly, or rounded to half the bytes. Memory is exact always."""
    publish_interval: int = Field(default=10, ge=1)
    """Train steps from one publication of weights to the next."""
