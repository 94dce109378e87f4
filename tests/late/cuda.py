"""`torch.cuda`, and what torch's functions do with a device, as if there were one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.late.memory import machine_is, now, pin, pinned
from tests.late.streams import Event, Machine
from tests.late.tensor import DEVICE, HOST, There

__all__ = ["begin_cuda", "late_cuda"]

_COPIED = {"as_tensor", "asarray", "tensor"}
"""What is made in host memory first; all else is filled by the device itself."""
_EMPTY = {"empty", "empty_like", "empty_strided"}


@contextmanager
def late_cuda(hasty: bool = False) -> Iterator[Machine]:
    """While it lasts there is a CUDA device in this process, for all its threads. Its work is done when somebody waits
    for it; if it is `hasty`, at once."""
    machine = Machine(hasty)
    converting = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter cannot become one of another class
    machine_is(machine)
    try:
        with ExitStack() as stack:
            for name, value in _module(machine).items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            for owner, name, value in _elsewhere():
                stack.enter_context(mock.patch.object(owner, name, value))
            # operations that only the host has; they give something else than others do
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(_Functions())
            yield machine
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(converting)
        machine_is(None)


def begin_cuda() -> None:
    """Of the device that is there: what the driver and its libraries open once in a process; computes as workers do."""
    torch.backends.cudnn.allow_tf32 = False
    x = torch.ones(8, 8, device=DEVICE, requires_grad=True)
    torch.nn.LSTM(8, 8, device=DEVICE)(x @ x)[0].sum().backward()
    torch.cuda.synchronize(DEVICE)


class _Graph:
    """As `torch.cuda.CUDAGraph`."""

    captured: Any = None

    def replay(self) -> None:
        """All of it again."""
        now().replay(self.captured)


def _module(machine: Machine) -> dict[str, Any]:
    """Names of `torch.cuda`."""
    about = SimpleNamespace(name="late", uuid="late")
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: about.name,
        "get_device_properties": lambda *_: about,
        "is_bf16_supported": lambda *_: True,
        "Stream": lambda *_: machine.stream(),
        "Event": Event,
        "CUDAGraph": _Graph,
        "graph": lambda graph, **_: machine.captures(graph),
        "stream": machine.using,
        "current_stream": lambda *_: machine.current,
        "synchronize": lambda *_: machine.synchronize(),
        "is_current_stream_capturing": lambda: machine.capture is not None,
        "_lazy_init": lambda: None,
    }


def _elsewhere() -> Iterator[tuple[Any, str, Any]]:
    """What torch does where no function of a tensor is asked: in other threads, in gradients, in sorting by device."""
    thread: Any = threading.Thread
    begin, engine = thread._bootstrap_inner, torch.autograd._engine_run_backward
    group = torch._C._group_tensors_by_device_and_dtype

    def bootstrap(self: Any) -> None:
        with _Functions():
            begin(self)

    def backward(*args: Any, **kwargs: Any) -> Any:
        with _Functions():
            return engine(*args, **kwargs)

    def grouped(tensors: Any, indices: bool = False) -> dict[Any, Any]:
        there = any(isinstance(one, There) for many in tensors for one in many)
        found = group(tensors, indices).items()
        return {(DEVICE if there else device, dtype): what for (device, dtype), what in found}

    yield thread, "_bootstrap_inner", bootstrap
    yield torch.autograd, "_engine_run_backward", backward
    yield torch._C, "_group_tensors_by_device_and_dtype", grouped


class _Functions(TorchFunctionMode):
    """What is asked of a device in Python."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name, one = getattr(func, "__name__", ""), args[0] if args and isinstance(args[0], Tensor) else None
        if one is not None and func is getattr(Tensor, name, None):
            if name in ("to", "cuda", "cpu"):
                return _moved(one, name, args[1:], kwargs)
            if name == "pin_memory":
                return pin(one.clone())
            if name == "is_pinned":
                return not isinstance(one, There) and pinned(one)
            if isinstance(one, There) and name in _OF_THERE:
                return _OF_THERE[name](one, *args[1:], **kwargs)
        if isinstance(one, There) and func == _SET_DATA:
            one.held, one.block = args[1].held, args[1].block
        if kwargs.get("device") is not None and _there(kwargs["device"]) and not isinstance(one, There):
            return _made(func, args, kwargs)
        pinning = kwargs.pop("pin_memory", False)
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **kwargs)
        return pin(found) if pinning else found


_SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined] # of a descriptor


def _numpy(*_: Any, **__: Any) -> Any:
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory first"
    )


_OF_THERE: dict[str, Any] = {
    "numpy": _numpy,
    "tolist": lambda one: _down(one, False).tolist(),
    "new_tensor": lambda one, data, dtype=None: _up(torch.tensor(data, dtype=dtype or one.dtype), False),
    "record_stream": There.record_stream,
}


def _there(device: Any) -> bool:
    return torch.device(device).type == "cuda"


def _made(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Of what makes tensors on a device."""
    if kwargs.get("generator") is not None:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    made: Tensor = func(*args, **{**kwargs, "device": HOST})
    name = func.__name__
    if name in _EMPTY:
        return There.empty(made).requires_grad_(made.requires_grad)
    return _up(made.detach(), True, filled=name not in _COPIED).requires_grad_(made.requires_grad)


def _moved(one: Tensor, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`to`, `cuda` and `cpu`."""
    device: Any = {"cuda": DEVICE, "cpu": HOST}.get(name) or kwargs.get("device")
    dtype, unblocked = kwargs.get("dtype"), bool(kwargs.get("non_blocking"))
    for given in args:
        if isinstance(given, Tensor):
            device, dtype = given.device, given.dtype
        elif isinstance(given, torch.dtype):
            dtype = given
        elif isinstance(given, bool):
            unblocked = given
        elif given is not None:
            device = given
    dtype, there = dtype or one.dtype, isinstance(one, There)
    with torch._C.DisableTorchFunctionSubclass():
        if device is not None and _there(device) and not there:
            assert not (one.requires_grad and torch.is_grad_enabled()), "gradients do not cross devices here"
            return _up(one.detach() if one.dtype == dtype else one.detach().to(dtype), unblocked)
        if device is not None and not _there(device) and there:
            return _down(one.detach(), unblocked).to(dtype)
        same = one.dtype == dtype and not kwargs.get("copy")
        return one if same else torch.ops.aten._to_copy(one, dtype=dtype)


def _up(one: Tensor, unblocked: bool, filled: bool = False) -> Tensor:
    """The same there; `filled` by the device itself."""
    there = There.empty(one)
    with torch.no_grad():
        if filled:
            there.fill(one)
            return there
        return there.copy_(one, non_blocking=unblocked)


def _down(one: Tensor, unblocked: bool) -> Tensor:
    """The same here."""
    with torch.no_grad():
        here = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype)
        return (pin(here) if unblocked else here).copy_(one, non_blocking=unblocked)
