"""Memory of the device that is not there, and the host's memory that is pinned.

Memory that is given back is overwritten in the order of the stream it came from: whoever still reads it there, or in
another stream that it was not recorded for, reads nonsense.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from tests.late.streams import CAPTURING, Captured, Machine, Stream

__all__ = ["Block", "machine_is", "nonsense_", "now", "pin", "pinned"]

_the: dict[str, Machine] = {}
_pinned: set[int] = set()
"""Where storages that are pinned lie."""


def machine_is(machine: Machine | None) -> None:
    """`machine` does all work; without one there is none."""
    _pinned.clear()
    _the.clear()
    if machine is not None:
        _the["machine"] = machine


def now() -> Machine:
    """Which does all work."""
    return _the["machine"]


def pin(tensor: Tensor) -> Tensor:
    """`tensor`, whose memory is pinned from now on."""
    if now().capture is not None:
        raise RuntimeError(CAPTURING)
    storage = tensor.untyped_storage()
    _pinned.add(storage.data_ptr())
    weakref.finalize(storage, _pinned.discard, storage.data_ptr()).atexit = False
    return tensor


def pinned(tensor: Tensor) -> bool:
    """Whether its memory is pinned."""
    return tensor.untyped_storage().data_ptr() in _pinned


class Block:
    """Memory of the device: given back when nothing refers to it any more."""

    def __init__(self, held: Tensor, stream: Stream) -> None:
        self.recorded: set[Stream] = set()
        if now().capture is None or now().capturing(stream) is not None:
            weakref.finalize(self, _give_back, held, stream, self.recorded, now().capturing(stream)).atexit = False


def _give_back(held: Tensor, stream: Stream, recorded: set[Stream], capture: Captured | None) -> None:
    machine = stream.machine
    if _the.get("machine") is not machine:
        return  # it is gone
    if capture is not None and (capture.over or machine.capture is not capture):
        return  # of a graph, whose memory is nobody else's
    if capture is None and machine.capturing(stream) is not None:
        return
    if not recorded:
        machine.ask(stream, lambda: nonsense_(held))
    elif capture is None:  # nobody gets it before all are done with it, for which nobody waits
        aside = machine.stream()
        for other in (stream, *recorded):
            aside.wait_stream(other)
        machine.ask(aside, lambda: nonsense_(held))


def nonsense_(held: Tensor) -> None:
    """Fills it with what nobody takes for a number."""
    with torch.inference_mode(False), torch.no_grad():
        if held.is_floating_point() or held.is_complex():
            held.fill_(float("nan"))
        else:
            held.fill_(1 if held.dtype == torch.bool else torch.iinfo(held.dtype).max)
