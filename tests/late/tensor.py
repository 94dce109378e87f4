"""Tensors of the device that is not there: their memory is the host's, and what is asked of them is done by streams.

In flows: operations as torch dispatches them. Out flows: outputs of the right shape at once, whose numbers come late;
errors for what CUDA refuses: operands on two devices, and what the host would have to see while a graph is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.late.memory import Block, nonsense_, now, pinned
from tests.late.streams import CAPTURING

__all__ = ["DEVICE", "HOST", "There"]

DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
_aten = torch.ops.aten
_SEEN = {  # by the host, before it can go on
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten.multinomial.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.repeat_interleave.Tensor,
    _aten.bincount.default,
}
_ALL_THERE = {_aten.cat.default, _aten.stack.default, _aten.index_select.default, _aten.gather.default}
"""Which take not even one number of the host."""
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}


class There(Tensor):
    """One that says that it is on the device."""

    held: Tensor
    block: Block

    @staticmethod
    def __new__(cls, held: Tensor, block: Block) -> There:
        made: There = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=HOST,  # in C++, whose autograd would look for streams of CUDA
        )
        made.held, made.block = held, block
        return made

    def __init__(self, *_: Any) -> None:
        """All is done."""

    @property
    def device(self) -> torch.device:  # type: ignore[override] # torch's is an attribute
        """Where it says that it is."""
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override] # torch's is an attribute
        """It is."""
        return True

    def data_ptr(self) -> int:
        """Of the memory that it has."""
        return self.held.data_ptr()

    def record_stream(self, stream: Any) -> None:
        """Its memory is not given back before what `stream` has been asked for until then."""
        self.block.recorded.add(stream)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override] # as torch's has it
        return f"There({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        if getattr(self, "_is_param", False):
            copied._is_param = True
        return copied

    def fill(self, constant: Tensor) -> None:
        """With a constant, by the device itself."""
        held = self.held

        def work() -> None:
            with torch.inference_mode(False), torch.no_grad():
                held.copy_(constant)

        now().ask(now().current, work)

    @classmethod
    def empty(cls, like: Tensor) -> There:
        """Of the size and strides of `like`, with nothing in it."""
        with torch.inference_mode(False):
            held = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
        nonsense_(held)
        return cls(held, Block(held, now().current))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # as torch documents it
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if func is _aten.copy_.default:
            return _copied(args[0], args[1], bool((args[2:] or (kwargs.get("non_blocking"),))[0]))
        if kwargs.get("device") is not None:
            kwargs["device"] = HOST  # as C++ believes
        kind = _KINDS.get(func) or _KINDS.setdefault(func, _kind(func))
        if kind == "composed":  # of others, as they come in inference mode
            return func.decompose(*args, **kwargs)
        given = [*_leaves((args, kwargs))]
        _same_device(func, given, args, kwargs)
        if kind == "seen" or (
            kind == "indexed" and any(one is not None and one.dtype == torch.bool for one in args[1])
        ):
            return _seen(func, args, kwargs)
        if kind == "view":
            base = next(one for one in given if isinstance(one, There))
            with torch.inference_mode(base.is_inference()):
                seen = func(*_map(_memory, args), **_map(_memory, kwargs))
                return _map(lambda one: There(one, base.block), seen)
        return (_written if func._schema.is_mutable else _found)(func, args, kwargs)


_KINDS: dict[Any, str] = {}


def _kind(func: Any) -> str:
    """What has to be known of an operation."""
    if func in _SEEN:
        return "seen"
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return "composed"
    if func in _INDEXED:
        return "indexed"
    if func._schema.is_mutable:
        return "written"
    return "view" if any(one.alias_info is not None for one in func._schema.returns) else "found"


def _map(change: Callable[[Tensor], Any], of: Any) -> Any:
    """`of` with all tensors changed."""
    if isinstance(of, Tensor):
        return change(of)
    if isinstance(of, list | tuple):
        return type(of)([_map(change, one) for one in of])
    if isinstance(of, dict):
        return {name: _map(change, one) for name, one in of.items()}
    return of


def _leaves(of: Any) -> Iterator[Tensor]:
    """All tensors."""
    if isinstance(of, Tensor):
        yield of
    elif isinstance(of, list | tuple):
        for one in of:
            yield from _leaves(one)
    elif isinstance(of, dict):
        yield from _leaves([*of.values()])


def _memory(one: Tensor) -> Tensor:
    """In the host; a plain tensor is as it is now."""
    return one.held if isinstance(one, There) else one.detach().clone()


def _later(func: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], Any]:
    """The operation on host memory, when its time comes."""
    args, kwargs = _map(_memory, args), _map(_memory, kwargs)

    def work() -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return func(*args, **kwargs)

    return work


def _same_device(func: Any, given: Sequence[Tensor], args: Any, kwargs: Any) -> None:
    """RuntimeError where CUDA would have one for an operand, or a generator, of the host."""
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type == "cpu":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    for number, one in enumerate(given):
        if isinstance(one, There):
            continue
        if (one.dim() and (func not in _INDEXED or not number)) or func in _ALL_THERE or one is _written_by(func, args):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({func})"
            )
        if one.dim() and now().capture is not None:  # indices, which torch takes there by itself
            raise RuntimeError(CAPTURING)


def _written_by(func: Any, args: Any) -> Any:
    """The first operand of what is done in place."""
    return args[0] if func._schema.is_mutable and args else None


def _seen(func: Any, args: Any, kwargs: Any) -> Any:
    """Of what the host waits for."""
    now().current.synchronize()
    found = _later(func, args, kwargs)()
    if func is _aten.index_put_.default:
        return args[0]
    return _map(lambda one: There(one, Block(one, now().current)), found)


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """In place."""
    now().ask(now().current, _later(func, args, kwargs))
    schema = func._schema
    if not schema.returns:
        return None
    named = dict(zip([one.name for one in schema.arguments], args, strict=False), **kwargs)
    written = {
        next(iter(one.alias_info.before_set)): named[one.name]
        for one in schema.arguments
        if one.alias_info is not None and one.alias_info.is_write and one.name in named
    }
    returned = [written[next(iter(one.alias_info.before_set))] for one in schema.returns]
    return returned[0] if len(returned) == 1 else tuple(returned)


def _found(func: Any, args: Any, kwargs: Any) -> Any:
    """New tensors."""
    found = _map(There.empty, _shaped(func, args, kwargs))
    work, outputs = _later(func, args, kwargs), [one.held for one in _leaves(found) if isinstance(one, There)]

    def fill() -> None:
        made = work()
        with torch.inference_mode(False), torch.no_grad():
            for output, one in zip(outputs, _leaves(made), strict=True):
                output.copy_(one)

    now().ask(now().current, fill)
    return found


def _shaped(func: Any, args: Any, kwargs: Any) -> Any:
    """What it gives, without numbers."""
    key = func, _key(args), _key(kwargs)
    if key not in _SHAPES:
        with torch.inference_mode(False), torch.no_grad():
            try:
                there = {**kwargs, "device": torch.device("meta")} if kwargs.get("device") is not None else kwargs
                found = func(*_map(_meta, args), **_map(_meta, there))
            except (NotImplementedError, RuntimeError):
                found = func(*_map(_zeros, args), **_map(_zeros, kwargs))
        _SHAPES[key] = _map(_meta, found)
    return _SHAPES[key]


_SHAPES: dict[Any, Any] = {}


def _key(of: Any) -> Any:
    """What the shape of an output depends on."""
    if isinstance(of, Tensor):
        return of.size(), of.stride(), of.dtype, isinstance(of, There)
    if isinstance(of, list | tuple):
        return tuple(_key(one) for one in of)
    if isinstance(of, dict):
        return tuple((name, _key(one)) for name, one in of.items())
    return type(of), of


def _meta(one: Tensor) -> Tensor:
    return torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="meta")


def _zeros(one: Tensor) -> Tensor:
    return torch.empty_strided(one.size(), one.stride(), dtype=one.dtype).zero_()


def _place(held: Tensor) -> tuple[Any, ...]:
    strides = [stride for size, stride in zip(held.size(), held.stride(), strict=True) if size > 1]
    return held.data_ptr(), held.size(), held.dtype, *strides


def _copied(to: Tensor, source: Tensor, unblocked: bool) -> Tensor:
    """`source` over `to`: from or to memory of the host, or within the device."""
    machine = now()
    here = [one for one in (to, source) if not isinstance(one, There)]
    late = not here or (unblocked and all(pinned(one) for one in here))
    if machine.capture is not None and not late:
        raise RuntimeError(CAPTURING)
    into = to.held if isinstance(to, There) else to
    taken = source.held if isinstance(source, There) else source if late else source.detach().clone()

    if _place(into) == _place(taken):
        return to  # as torch ends what it does with out=

    def work() -> None:
        with torch.inference_mode(False), torch.no_grad():
            into.copy_(taken)

    machine.ask(machine.current, work)
    if here and (not unblocked or (to is here[0] and not late)):
        machine.current.synchronize()
    return to
