"""How batches reach a device: from pinned memory, on a stream of their own, beside what is computed there.

In flow: tensors in host memory. Out flow: the same on the device. What was sent must not be written again before it has
left, but for what was copied first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class DeviceTransfer:
    """To `device`. Without CUDA tensors are there at once."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.overlaps = device, device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self.overlaps else None
        self._left: torch.cuda.Event | None = None
        self._held: dict[str, Tensor] = {}
        """What `send_copies` sends from."""

    def pin(self, tensor: Tensor) -> Tensor:
        """`tensor`, pinned where a GPU reads it."""
        return tensor.pin_memory() if self.overlaps else tensor

    def send(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of them, on their way; to be used after `synchronize`."""
        if self._stream is None:
            return {name: tensor.to(self._device) for name, tensor in tensors.items()}
        with torch.cuda.stream(self._stream):
            sent = {name: tensor.to(self._device, non_blocking=True) for name, tensor in tensors.items()}
            self._left = self._stream.record_event()
        return sent

    def send_copies(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As `send`, but where they lie may be written again at once, except without CUDA."""
        if self.overlaps:
            self.wait()
            tensors = {name: self._copied(name, tensor) for name, tensor in tensors.items()}
        return self.send(tensors)

    def synchronize(self, sent: Mapping[str, Tensor]) -> None:
        """What is asked of the device from now on comes after `sent`."""
        if self._stream is None:
            return
        here = torch.cuda.current_stream(self._device)
        here.wait_stream(self._stream)
        for tensor in sent.values():
            tensor.record_stream(here)

    def wait(self) -> None:
        """Waits until what was sent has left."""
        if self._left is not None:
            self._left.synchronize()
            self._left = None

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        """`tensor` in pinned memory that is used again and again."""
        held = self._held.get(name)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = self._held[name] = torch.empty_like(tensor).pin_memory()
        return held.copy_(tensor)
