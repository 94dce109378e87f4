"""All that an object remembers, as plain arrays, and the same object put back to it: for cuts of lock-step.

In flow: an object whose memory is arrays, numbers and generators of random numbers, its own or of parts of it that are
objects of the same kind. Out flow: arrays by name, one of which (`tree`) is JSON that tells the others' places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel

from protocol.errors import ConfigurationError

State = dict[str, NDArray]
_One = TypeVar("_One")

_PARTS = ("workers.environments.", "workers.league.", "workers.rollout.")
"""Modules whose objects are looked into; what is of others (configuration, policies, sockets) is there again."""
_LEFT: dict[str, Any] = {"left": True}


def capture(whole: object, leave: tuple[str, ...] = ()) -> State:
    """What `whole` remembers, copied; attributes in `leave` are not its memory. Of objects of other modules than
    environments, acting and that of `whole` itself nothing is taken."""
    taking = _Taking(type(whole).__module__)
    tree = taking.parts(whole, leave)
    return {**taking.arrays, "tree": np.frombuffer(json.dumps(tree).encode(), np.uint8)}


def restore(whole: object, state: Mapping[str, NDArray], kinds: tuple[type, ...] = ()) -> None:
    """`whole`, which was made and begun in the same way, goes on from what `capture` gave; objects that it has not yet
    are made anew if they are of one of the `kinds`, which are dataclasses. ConfigurationError for what is no such
    state."""
    try:
        _Putting(state, {kind.__name__: kind for kind in kinds}).put(json.loads(state["tree"].tobytes()), whole)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as fault:
        raise ConfigurationError("state_not_restorable", what=type(whole).__name__, reason=str(fault)) from None


def strip_prefix(prefix: str, named: Mapping[str, _One]) -> dict[str, _One]:
    """What is called `prefix` and something, by that."""
    return {name.removeprefix(prefix): one for name, one in named.items() if name.startswith(prefix)}


class _Taking:
    """One walk: what was met before is not taken twice."""

    def __init__(self, own: str) -> None:
        self._own, self._met = own, set[int]()
        self.arrays: State = {}

    def parts(self, whole: object, leave: tuple[str, ...] = ()) -> dict[str, Any]:
        """The attributes of `whole`, but for those to `leave`."""
        self._met.add(id(whole))
        told = {name: self.node(value) for name, value in _memory(whole).items() if name not in leave}
        return {"object": told, "kind": type(whole).__name__}

    def node(self, value: Any) -> dict[str, Any]:
        """How `value` is told."""
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        if isinstance(value, np.ndarray | np.generic):
            return self._array(np.asarray(value), isinstance(value, np.generic))
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self.node(one) for one in value]}
        if isinstance(value, dict):
            return {"dict": [[self.node(key), self.node(one)] for key, one in value.items()]}
        if id(value) in self._met:
            return _LEFT
        if isinstance(value, np.random.Generator):
            self._met.add(id(value))
            return {"random": json.loads(json.dumps(value.bit_generator.state, default=np.ndarray.tolist))}
        return self.parts(value) if self._looked_into(value) else _LEFT

    def _array(self, array: NDArray, scalar: bool) -> dict[str, Any]:
        if array.dtype.hasobject:
            return _LEFT
        name = str(len(self.arrays))
        flat = np.ascontiguousarray(array).reshape(-1)
        self.arrays[name] = np.frombuffer(flat.tobytes(), np.uint8).copy()
        kind = npy.dtype_to_descr(array.dtype)
        return {"array": name, "shape": list(array.shape), "dtype": kind, "scalar": scalar}

    def _looked_into(self, value: object) -> bool:
        module = type(value).__module__
        known = module.startswith(_PARTS) or module == self._own
        return known and not isinstance(value, BaseModel | type)


def _memory(whole: object) -> dict[str, Any]:
    if is_dataclass(whole):
        return {field.name: getattr(whole, field.name) for field in fields(whole)}
    return vars(whole)


class _Putting:
    """The way back, with the arrays `state`; `kinds` may be made anew."""

    def __init__(self, state: Mapping[str, NDArray], kinds: Mapping[str, type]) -> None:
        self._state, self._kinds = state, kinds

    def put(self, node: Mapping[str, Any], now: Any) -> Any:
        """What `node` tells of; `now` is what is in its place, and is kept where it can be."""
        if "left" in node:
            return now
        if "value" in node:
            return node["value"]
        if "array" in node:
            return self._array(node, now)
        if "random" in node:
            now.bit_generator.state = node["random"]
            return now
        if "object" in node:
            return self._object(node, now)
        if "dict" in node:
            had = now if isinstance(now, dict) else {}
            names = [(self.put(key, None), value) for key, value in node["dict"]]
            return {name: self.put(value, had.get(name)) for name, value in names}
        kind, parts = next(iter(node.items()))
        had_parts = now if isinstance(now, list | tuple) and len(now) == len(parts) else [None] * len(parts)
        made = [self.put(part, one) for part, one in zip(parts, had_parts, strict=True)]
        return tuple(made) if kind == "tuple" else made

    def _object(self, node: Mapping[str, Any], now: Any) -> Any:
        if now is None:
            return self._kinds[node["kind"]](**{name: self.put(part, None) for name, part in node["object"].items()})
        for name, part in node["object"].items():
            if "left" not in part:
                setattr(now, name, self.put(part, getattr(now, name)))
        return now

    def _array(self, node: Mapping[str, Any], now: Any) -> Any:
        dtype = npy.descr_to_dtype(_descr(node["dtype"]))
        array = np.frombuffer(self._state[node["array"]].tobytes(), dtype).reshape(node["shape"])
        if node["scalar"]:
            return array[()]
        fits = isinstance(now, np.ndarray) and now.shape == array.shape and now.dtype == dtype
        if fits and now.flags.writeable:  # others may look at the same memory
            now[...] = array
            return now
        return array.copy()


def _descr(told: Any) -> Any:
    """A dtype's description, whose pairs JSON made lists."""
    if isinstance(told, str):
        return told
    return [(name, _descr(kind), *(tuple(one) for one in shape)) for name, kind, *shape in told]
