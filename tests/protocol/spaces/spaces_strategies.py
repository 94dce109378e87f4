"""Random spaces and trees for property tests: small enough to be sampled, with every kind of node in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from protocol.spaces import (
    Action,
    Agent,
    ArrayPopulation,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Observation,
    Payoff,
    Text,
    Tuple,
    World,
)

__all__ = ["SLOW", "agents", "boxes", "spaces", "worlds"]

SLOW = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
"""For properties of whole trees, which take a while to be drawn."""

_SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
_FILLED = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
_WHOLE = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "int64")
_KEYS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,3}", fullmatch=True)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Of every dtype, bounded by nothing, one number or one for each element."""
    shape = draw(_SHAPES)
    dtype = draw(st.sampled_from((*_WHOLE, "float16", "float32", "float64", "bool")))
    size = int(np.prod(shape))
    numbers: st.SearchStrategy[Any]
    if dtype == "bool":
        numbers = st.integers(0, 1)
    elif dtype.startswith("float"):
        numbers = st.floats(-100, 100, width={"float16": 16, "float32": 32}.get(dtype, 64))  # type: ignore[arg-type]
    else:
        numbers = st.integers(0 if dtype.startswith("u") else -100, 100)
    pairs = draw(st.lists(st.tuples(numbers, numbers).map(sorted), min_size=size or 1, max_size=size or 1))
    low = draw(st.sampled_from([None, min(a for a, _ in pairs), tuple(a for a, _ in pairs)][: 3 if size else 2]))
    high = draw(st.sampled_from([None, max(b for _, b in pairs), tuple(b for _, b in pairs)][: 3 if size else 2]))
    return Box.model_validate({"shape": shape, "dtype": dtype, "low": low, "high": high})


def _discrete() -> st.SearchStrategy[Discrete]:
    return st.builds(
        Discrete, n=st.integers(1, 50), start=st.integers(-50, 50), dtype=st.sampled_from(("int64", "int32", "int8"))
    )


@st.composite
def _multi_discrete(draw: st.DrawFn) -> MultiDiscrete:
    shape = draw(_FILLED)
    size = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    starts = st.lists(st.integers(-5, 5), min_size=size, max_size=size).map(tuple)
    return MultiDiscrete(nvec=tuple(nvec), shape=shape, start=draw(st.integers(-5, 5) | starts))


@st.composite
def _text(draw: st.DrawFn) -> Text:
    least = draw(st.integers(0, 4))
    charset = draw(st.text("abcxyz µ→0", min_size=1, max_size=6))
    return Text(min_length=least, max_length=draw(st.integers(max(1, least), 8)), charset=charset)


def _leaves() -> st.SearchStrategy[Any]:
    return boxes() | _discrete() | _multi_discrete() | st.builds(MultiBinary, shape=_FILLED) | _text()


def _dict_of(inner: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[Dict]:
    return st.dictionaries(_KEYS, inner, min_size=least, max_size=3).map(lambda found: Dict(spaces=found))


def spaces() -> st.SearchStrategy[Any]:
    """Any space: leaves, Dicts and Tuples of spaces."""
    return st.recursive(
        _leaves(),
        lambda inner: _dict_of(inner) | st.lists(inner, max_size=3).map(lambda found: Tuple(spaces=tuple(found))),
        max_leaves=6,
    )


@st.composite
def _observations(draw: st.DrawFn) -> Any:
    components = {"own": Component(space=draw(_leaves()))}
    for key in draw(st.sets(_KEYS, max_size=2)):
        components[key] = Component(space=draw(spaces()), evaluation_only=draw(st.booleans()) and key != "own")
    return Observation(components=components)


@st.composite
def agents(draw: st.DrawFn, name: str = "a") -> Agent:
    """Agents whose action is a leaf, or a Dict that may come in parts."""
    action: Any = draw(_leaves() | st.builds(Action, space=_dict_of(_leaves(), 1), atomic=st.booleans()))
    masked = isinstance(action, Discrete | MultiDiscrete) and draw(st.booleans())
    return Agent(name=name, observation=draw(_leaves() | _observations()), action=action, action_mask=masked)


@st.composite
def _populations(draw: st.DrawFn, name: str, depth: int) -> Any:
    payoff: Payoff = draw(st.sampled_from(("cooperative", "zero_sum", "general")))
    shared = draw(spaces()) if draw(st.booleans()) else None
    common = None if shared is None else Dict(spaces={f"{name}-seen": shared})
    if draw(st.booleans()):
        member, capacity = draw(agents("member")), draw(st.integers(1, 3000))
        return ArrayPopulation(name=name, payoff=payoff, common=common, template=member, capacity=capacity)
    members: list[Any] = []
    for i in range(draw(st.integers(1, 3))):
        deeper = depth > 0 and draw(st.booleans())
        members.append(draw(_populations(f"p{depth}-{i}", depth - 1) if deeper else agents(f"agent_{i}")))
    if draw(st.booleans()):
        members = [members[0], *(members[0].model_copy(update={"name": f"twin_{i}"}) for i in range(2))]
        return DictPopulation(name=name, payoff=payoff, common=common, agents=tuple(members), symmetric=True)
    return DictPopulation(name=name, payoff=payoff, common=common, agents=tuple(members))


def worlds() -> st.SearchStrategy[World]:
    """Trees with populations in populations."""
    return st.builds(
        World,
        id=st.text(min_size=1, max_size=9),
        population=_populations("all", 2),
        episode_steps=st.none() | st.just(9),
    )
