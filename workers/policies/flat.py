"""All weights of a module on one flat buffer, so that they travel, are published and are adopted as one unit.

In flow: any module. Out flow: a `FlatWeights`, whose bytes are the parameters and buffers themselves (normaliser
statistics, target networks and exploration scalars included), described by a manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["Entry", "FlatWeights", "flatten_"]

ALIGNMENT = 64
_DTYPES = {
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.uint8: "|u1",
    torch.bool: "|b1",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter or buffer: where it lies in the flat storage, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int

    def describe(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "offset": self.offset}


class FlatWeights:
    """The one storage of a module's parameters and buffers.

    Trainable parameters come first, then the rest, each at a multiple of 64 bytes; the padding between stays zero.
    """

    def __init__(self, storage: Tensor, entries: tuple[Entry, ...], trainable: int) -> None:
        self.storage = storage
        """[nbytes] uint8 on the module's device."""
        self.entries = entries
        self._trainable = trainable

    @property
    def nbytes(self) -> int:
        """Bytes of the whole, padding included."""
        return self.storage.numel()

    @property
    def manifest(self) -> list[dict[str, Any]]:
        """name, dtype, shape and byte offset of each entry, in the order they lie."""
        return [entry.describe() for entry in self.entries]

    @cached_property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the manifest's compact JSON."""
        return hashlib.sha256(json.dumps(self.manifest, separators=(",", ":")).encode()).hexdigest()[:16]

    @cached_property
    def parameters(self) -> Tensor:
        """All trainable parameters as one float32 view (padding included: it is zero and has no gradient)."""
        return self.storage[: self._trainable].view(torch.float32)

    def span(self, prefix: str) -> Tensor:
        """The float32 view on the adjacent entries whose names start with `prefix`; ValueError if it is not one."""
        chosen = [i for i, entry in enumerate(self.entries) if entry.name.startswith(prefix)]
        if not chosen or chosen != list(range(chosen[0], chosen[-1] + 1)):
            raise ValueError(f"entries named {prefix}* are not one block; define them next to each other in the module")
        if any(self.entries[i].dtype != "<f4" for i in chosen):
            raise ValueError(f"entries named {prefix}* are not all float32; move the others out of the block")
        last = self.entries[chosen[-1]]
        return self.storage[self.entries[chosen[0]].offset : _aligned(last.offset + last.size)].view(torch.float32)

    def bytes_view(self) -> NDArray[np.uint8]:
        """[nbytes], sharing memory with the module; ValueError if the module is not in host memory."""
        if self.storage.device.type != "cpu":
            raise ValueError(f"weights on {self.storage.device} have no view in host memory; use snapshot instead")
        return self.storage.numpy()

    def snapshot(self, out: NDArray[np.uint8]) -> None:
        """Copies the weights to `out` [nbytes] in host memory; the module stays where it is."""
        torch.from_numpy(self._checked(out)).copy_(self.storage)

    def load(self, src: NDArray[np.uint8]) -> None:
        """Copies `src` [nbytes] from host memory over the weights, in place."""
        src = self._checked(src)
        if self.storage.device.type == "cpu":
            np.copyto(self.storage.numpy(), src)
        else:
            self.storage.copy_(torch.from_numpy(src if src.flags.writeable else src.copy()))

    def _checked(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if array.dtype != np.uint8 or array.shape != (self.nbytes,):
            raise ValueError(
                f"flat weights are {self.nbytes} bytes but the array is {array.dtype} of shape {array.shape}; "
                "both ends must build the policy from the same configuration"
            )
        return array


def flatten_(module: nn.Module) -> FlatWeights:
    """Moves all parameters and buffers of `module` onto one storage, in place, and describes it.

    Calling it again gives the same object, unless tensors were moved since (`module.to(device)` does): then they are
    moved onto a new storage. Raises ValueError for a trainable parameter that is not float32, a dtype without a
    manifest name or tensors on several devices.
    """
    known = module.__dict__.get("_flat_weights")
    if isinstance(known, FlatWeights) and _at_home(module, known):
        return known
    tensors = list(_ordered(module))
    devices = {tensor.device for _, tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"a module on {len(devices)} devices cannot be flat; move all of it to one device first")
    entries, end, trainable = [], 0, 0
    for name, tensor in tensors:
        if tensor.dtype not in _DTYPES or (tensor.requires_grad and tensor.dtype != torch.float32):
            raise ValueError(
                f"{name} is {tensor.dtype}; parameters must be float32, buffers {', '.join(_DTYPES.values())}"
            )
        entries.append(Entry(name, _DTYPES[tensor.dtype], tuple(tensor.shape), end, tensor.numel() * tensor.itemsize))
        end = _aligned(end + entries[-1].size)
        trainable = end if tensor.requires_grad else trainable
    storage = torch.zeros(end, dtype=torch.uint8, device=devices.pop())
    for (_, tensor), entry in zip(tensors, entries, strict=True):
        view = storage[entry.offset : entry.offset + entry.size].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor.detach())
        tensor.data = view
    weights = FlatWeights(storage, tuple(entries), trainable)
    module.__dict__["_flat_weights"] = weights
    return weights


def _ordered(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Trainable parameters, then frozen ones, then buffers, each in order of definition."""
    yield from (item for item in module.named_parameters() if item[1].requires_grad)
    yield from (item for item in module.named_parameters() if not item[1].requires_grad)
    yield from module.named_buffers()


def _at_home(module: nn.Module, weights: FlatWeights) -> bool:
    start = weights.storage.data_ptr()
    names = {entry.name: start + entry.offset for entry in weights.entries}
    return names == {name: tensor.data_ptr() for name, tensor in _ordered(module)}


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
