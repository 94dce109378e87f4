"""Spaces nested in spaces, and what they come down to: an ordered list of leaves with dotted names.

In flow: a value of a space, nested as the space is. Out flow: an array for each leaf, and back. The order of the
leaves is fixed: the elements of a Dict by name, those of a Tuple by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from protocol.errors import EnvironmentFault
from protocol.spaces.model import Key, Node
from protocol.spaces.primitive import Box, Discrete, MultiBinary, MultiDiscrete, Text

LeafSpace = Box | Discrete | MultiDiscrete | MultiBinary | Text


def sorted_by_name(spaces: dict[str, Any]) -> dict[str, Any]:
    """The same in the order of their names, so that what is equal has the same leaves in the same order."""
    return dict(sorted(spaces.items()))


class Dict(Node):
    """Named spaces, in the order of their names."""

    kind: Literal["dict"] = "dict"
    spaces: Annotated[dict[Key, Space], AfterValidator(sorted_by_name)]


class Tuple(Node):
    """Spaces by position."""

    kind: Literal["tuple"] = "tuple"
    spaces: tuple[Space, ...]


Space = Annotated[Box | Discrete | MultiDiscrete | MultiBinary | Text | Dict | Tuple, Field(discriminator="kind")]
Dict.model_rebuild()
Tuple.model_rebuild()


@dataclass(frozen=True, slots=True)
class Element:
    """A leaf of a nested space: where it is (`path`, from the root) and what it is called (dotted)."""

    name: str
    path: tuple[str | int, ...]
    space: LeafSpace

    def pick(self, value: Any) -> Any:
        """This leaf's part of a nested value, which may have leading axes that the space has not."""
        for key in self.path:
            value = value[key]
        return value


def elements(space: Space, name: str, path: tuple[str | int, ...] = ()) -> Iterator[Element]:
    """The leaves of `space` in order; `name` is that of the space itself."""
    if isinstance(space, Dict):
        for key, inner in space.spaces.items():
            yield from elements(inner, f"{name}.{key}", (*path, key))
    elif isinstance(space, Tuple):
        for position, inner in enumerate(space.spaces):
            yield from elements(inner, f"{name}.{position}", (*path, position))
    else:
        yield Element(name, path, space)


def flatten(space: Space, value: Any, name: str, where: str = "") -> dict[str, NDArray[Any]]:
    """leaf name -> array, in the order of the leaves; EnvironmentFault (it begins with `where`) if `value` is not of
    the space: an element missing or unknown, a wrong shape, another kind of number, a choice that there is not."""
    arrays: dict[str, NDArray[Any]] = {}
    _flatten(space, value, name, where, arrays)
    return arrays


def _flatten(space: Space, value: Any, name: str, where: str, arrays: dict[str, NDArray[Any]]) -> None:
    label = f"{where}: {name}" if where else name
    if isinstance(space, Dict):
        if not isinstance(value, Mapping):
            raise EnvironmentFault("value_not_a_mapping", field=label, value=type(value).__name__)
        for key in value:
            if key not in space.spaces:
                raise EnvironmentFault("component_not_in_space", field=label, component=key)
        for key, inner in space.spaces.items():
            if key not in value:
                raise EnvironmentFault("component_missing", field=label, component=key, choices=list(space.spaces))
            _flatten(inner, value[key], f"{name}.{key}", where, arrays)
    elif isinstance(space, Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            got = f"of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__
            raise EnvironmentFault("value_not_a_tuple", field=label, count=len(space.spaces), value=got)
        for position, (inner, part) in enumerate(zip(space.spaces, value, strict=True)):
            _flatten(inner, part, f"{name}.{position}", where, arrays)
    else:
        arrays[name] = space.encode(value, label)


def unflatten(space: Space, arrays: Mapping[str, NDArray[Any]], name: str) -> Any:
    """The value whose leaves are in `arrays`; KeyError for a leaf that is not."""
    return nest(space, {leaf.name: leaf.space.decode(arrays[leaf.name]) for leaf in elements(space, name)}, name)


def nest(space: Space, parts: Mapping[str, Any], name: str) -> Any:
    """What is given for each leaf (by name), nested as the space is; KeyError for a leaf that has nothing."""
    if isinstance(space, Dict):
        return {key: nest(inner, parts, f"{name}.{key}") for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(nest(inner, parts, f"{name}.{i}") for i, inner in enumerate(space.spaces))
    return parts[name]
