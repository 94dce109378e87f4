"""Memory that is used again: fresh megabytes cost more in page faults than the products written to them."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


class ScratchBuffers:
    """Named scratch tensors. What `take` gave for a name is overwritten by whoever takes that name next: one user at
    a time, and nothing that must outlive the computation."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def __deepcopy__(self, _: object) -> ScratchBuffers:
        """What is computed elsewhere needs memory of its own, and nothing of what is in this."""
        return ScratchBuffers()

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised contiguous tensor of `shape`, of `like`'s dtype and device."""
        if torch.compiler.is_compiling():  # who compiles finds memory for everything
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        size = prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < size or held.dtype != like.dtype or held.device != like.device:
            # an eighth more, because rows vary a little from one minibatch to the next; never an inference tensor,
            # because who acts may also learn
            with torch.inference_mode(False):
                held = self._held[name] = torch.empty(size + size // 8, dtype=like.dtype, device=like.device)
        return held[:size].view(shape)
