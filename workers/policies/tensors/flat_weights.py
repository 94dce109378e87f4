"""All weights of a module on one flat buffer, so that they travel, are published and are adopted as one unit.

In flow: any module. Out flow: a `FlatWeights`, whose bytes are the parameters and buffers themselves (normaliser
statistics, target networks and exploration scalars included), described by a manifest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protocol.errors import Timeout
from protocol.weights.manifest import ALIGNMENT, Entry, Manifest
from protocol.weights.publisher import WeightSource

_TRANSFER_SECONDS = 60.0
_DTYPES = {
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.uint8: "|u1",
    torch.bool: "|b1",
}


class FlatWeights:
    """The one storage of a module's parameters and buffers.

    Trainable parameters come first, then the rest, each at a multiple of 64 bytes; the padding between stays zero.
    """

    def __init__(self, storage: Tensor, manifest: Manifest, trainable: int, buffers: frozenset[str]) -> None:
        self.storage = storage
        """[nbytes] uint8 on the module's device."""
        self.manifest = manifest
        """name, dtype, shape and byte offset of each entry, in the order they lie."""
        self._trainable, self._buffers = trainable, buffers
        self._side: torch.cuda.Stream | None = None

    def __deepcopy__(self, _: object) -> None:
        """A copy of the module lies elsewhere, until `flatten_` makes it flat."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole, padding included."""
        return self.storage.numel()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The manifest's."""
        return self.manifest.entries

    @property
    def hash(self) -> str:
        """The manifest's."""
        return self.manifest.hash

    @cached_property
    def parameters(self) -> Tensor:
        """All trainable parameters as one float32 view (padding included: it is zero and has no gradient)."""
        return self.storage[: self._trainable].view(torch.float32)

    def slice(self, prefix: str) -> Tensor:
        """The view on the trainable parameters whose names start with `prefix`, or, if it has none, on its other ones;
        ValueError if they are not adjacent."""
        chosen = [entry for entry in self.entries if entry.name.startswith(prefix) and entry.name not in self._buffers]
        trained = [entry for entry in chosen if entry.offset < self._trainable]
        return self._block(trained or chosen, prefix).view(torch.float32)

    def part(self, prefix: str) -> FlatWeights:
        """The adjacent entries whose names start with `prefix`, as weights of their own on the same memory; ValueError
        if they are not one block."""
        chosen = [entry for entry in self.entries if entry.name.startswith(prefix)]
        view = self._block(chosen, prefix)
        first = chosen[0].offset
        entries = [Entry(entry.name, entry.dtype, entry.shape, entry.offset - first) for entry in chosen]
        trainable = min(max(self._trainable - first, 0), view.nbytes)
        return FlatWeights(view, Manifest(entries), trainable, self._buffers)

    def _block(self, chosen: list[Entry], prefix: str) -> Tensor:
        """The bytes of entries; ValueError if they are not adjacent."""
        first = self.entries.index(chosen[0]) if chosen else 0
        if not chosen or chosen != list(self.entries[first : first + len(chosen)]):
            raise ValueError(f"entries named {prefix}* are not one block; define them next to each other in the module")
        return self.storage[chosen[0].offset : _aligned(chosen[-1].offset + chosen[-1].size)]

    def bytes_view(self) -> NDArray[np.uint8]:
        """[nbytes], sharing memory with the module; ValueError if the module is not in host memory."""
        if self.storage.device.type != "cpu":
            raise ValueError(f"weights on {self.storage.device} have no view in host memory; use source instead")
        return self.storage.numpy()

    def source(self) -> WeightSource:
        """What to publish: the weights of this moment, wherever the module is; it stays there.

        In host memory they are the module's own, to be copied before the next update. From CUDA they are cloned on the
        device in the order of its stream and are then on their way, beside the work that follows; the function that is
        returned waits for them, in any thread.
        """
        if self.storage.device.type == "cpu":
            return self.bytes_view()
        if self.storage.device.type != "cuda":
            return self.storage.cpu().numpy()
        clone = self.storage.clone()
        side = self._side = self._side or torch.cuda.Stream(self.storage.device)
        side.wait_stream(torch.cuda.current_stream(self.storage.device))
        with torch.cuda.stream(side):
            host = torch.empty(clone.shape, dtype=clone.dtype, pin_memory=True)
            host.copy_(clone, non_blocking=True)
            clone.record_stream(side)
            arrived = side.record_event()

        def fetch() -> NDArray[np.uint8]:
            end = time.monotonic() + _TRANSFER_SECONDS
            while not arrived.query():
                if time.monotonic() > end:
                    raise Timeout("device_transfer_timed_out", seconds=_TRANSFER_SECONDS)
                time.sleep(0.0002)
            return host.numpy()

        return fetch

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
        entries.append(Entry(name, _DTYPES[tensor.dtype], tuple(tensor.shape), end))
        end = _aligned(end + entries[-1].size)
        trainable = end if tensor.requires_grad else trainable
    storage = torch.zeros(end, dtype=torch.uint8, device=devices.pop())
    for (_, tensor), entry in zip(tensors, entries, strict=True):
        view = storage[entry.offset : entry.offset + entry.size].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor.detach())
        tensor.data = view
    buffers = frozenset(name for name, _ in module.named_buffers())
    weights = FlatWeights(storage, Manifest(entries), trainable, buffers)
    module.__dict__["_flat_weights"] = weights
    return weights


def _ordered(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Trainable parameters, then frozen ones, then buffers, each in order of definition; but what else belongs to the
    part that comes last of the trainable ones follows at once, so that this part is one block."""
    trained = [item for item in module.named_parameters() if item[1].requires_grad]
    rest = [item for item in module.named_parameters() if not item[1].requires_grad] + [*module.named_buffers()]
    last = trained[-1][0].partition(".")[0] if trained else ""
    yield from trained
    yield from (item for item in rest if item[0].partition(".")[0] == last)
    yield from (item for item in rest if item[0].partition(".")[0] != last)


def _at_home(module: nn.Module, weights: FlatWeights) -> bool:
    start = weights.storage.data_ptr()
    names = {entry.name: start + entry.offset for entry in weights.entries}
    return names == {name: tensor.data_ptr() for name, tensor in _ordered(module)}


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
