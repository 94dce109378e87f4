"""What the adapters of foreign environments share: what their calls return, spaces that stay the same, limits of steps,
seeds.

In flow: what an environment declares and returns. Out flow: nothing, or the sentence that says what is wrong with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.errors.origin import blame, shortened

RESET, STEP = "(observation, info)", "(observation, reward, terminated, truncated, info)"
"""What Gymnasium's `reset` and `step` return."""


def malformed(where: str, method: str, expected: str, told: Any, api: str = "gymnasium.Env") -> EnvironmentFault:
    """What to raise where a call of `api` returned something of another form."""
    said = type(told).__name__
    if isinstance(told, tuple | list):
        parts = ", ".join(type(part).__name__ for part in told)
        said = f"{len(told)} values" if len(told) != len(expected.split(", ")) else f"({parts})"
    return EnvironmentFault(
        "environment_call_malformed", where=where, method=method, expected=expected, value=said, api=api
    )


def check_reset(where: str, reset: Any, always_seeded: bool = False) -> None:
    """EnvironmentFault for a `reset` that takes no seed, as that of Gym took none, or that needs one, where it is not
    always given one."""
    if not _takes(reset, seed=0) or not (always_seeded or _takes(reset)):
        raise EnvironmentFault("reset_without_seed", where=where, value=inspect.signature(reset))


def number_of(where: str, reward: Any) -> float:
    """A reward; EnvironmentFault where that is no number."""
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        return float(reward)
    except (TypeError, ValueError):
        raise EnvironmentFault("reward_not_number", where=where, value=reward) from None


def has_ended(where: str, field: str, value: Any) -> bool:
    """Whether an episode was `field`; EnvironmentFault where text, a mapping or an array of several should say so."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        if isinstance(value, str | bytes | Mapping | Sequence):
            raise TypeError
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise EnvironmentFault("end_not_true_or_false", where=where, field=field, value=value) from None


def mapping_of(where: str, info: Any) -> Mapping[Any, Any]:
    """An info, empty where there is none; EnvironmentFault where it is no mapping."""
    if info is None or isinstance(info, Mapping):
        return info or {}
    raise EnvironmentFault("value_not_a_mapping", field=f"{where}: info", value=type(info).__name__)


def class_of(env: Any) -> str:
    """What a user calls the class of an environment, whatever is wrapped around it."""
    return type(getattr(env, "unwrapped", None) or env).__name__


_SPACE = "a gymnasium space, such as Discrete(2) or Box(-1, 1, (4,))"
_METHOD = "a method that takes an agent and returns its gymnasium space"


def declared_space(id: str, env: Any, field: str, *agent: Hashable) -> Any:
    """A space that an environment declares, PettingZoo's as a method of an agent; ConfigurationError where there is
    none, or it is no space of Gymnasium's."""
    from gymnasium import Space

    expected = _METHOD if agent else _SPACE
    facts = {"environment": id, "name": class_of(env), "field": field, "expected": expected}
    try:
        found = getattr(env, field)
        if agent and not callable(found):
            raise ConfigurationError("space_not_gymnasium", **facts, value=_said(found))
        if agent and not _takes(found, *agent):
            value = f"a method with the arguments {inspect.signature(found)}"
            raise ConfigurationError("space_not_gymnasium", **facts, value=value)
        space = found(*agent) if agent else found
    except AttributeError as fault:
        if fault.name not in (field, f"{field}s"):  # the second is where PettingZoo's own methods look
            raise
        raise ConfigurationError("space_missing", **facts) from None
    if not isinstance(space, Space):
        value = f"one that returns {_said(space)}" if agent else _said(space)
        raise ConfigurationError("space_not_gymnasium", **facts, value=value)
    return space


def _takes(call: Any, *arguments: Any, **keywords: Any) -> bool:
    """Whether it can be called so; True where it does not tell."""
    try:
        inspect.signature(call).bind(*arguments, **keywords)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _said(value: Any) -> str:
    """What was given instead of a space."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}, which should be called"
    if callable(value):
        return "a method"
    kind, short = type(value), shortened(value, 60)
    if kind.__module__.partition(".")[0] == "gym":
        return f"{short} of gym, the package before gymnasium"
    return f"{short}, of type {kind.__name__}"


def check_same(expected: Any, got: Any, where: str, field: str) -> None:
    """EnvironmentFault if a space is not the one that was declared at first."""
    if got is not expected and got != expected:
        raise EnvironmentFault("space_changed", where=where, field=field, expected=expected, value=got)


def max_steps(value: Any) -> int | None:
    """A limit of steps as an environment declares it; None where that is no such number."""
    return int(value) if isinstance(value, int | np.integer) and value > 0 else None


def check_limit(name: str, value: Any) -> None:
    """ValueError for a setting that is no limit of steps; None is none."""
    if value is not None and max_steps(value) != value:
        raise ValueError(f"{name} should be a whole number from 1 on but is {value!r}")


def settings_refused(id: str, settings: Mapping[str, Any], fault: BaseException) -> ConfigurationError:
    """What to raise where an environment cannot be made with what it is given."""
    facts = {"environment": id, "value": dict(settings), "key": "environment.settings"}
    return ConfigurationError("environment_settings_refused", **facts, **blame(fault))


def step_before_reset(where: str) -> EnvironmentFault:
    """What to raise when actions come for an environment that has no episode yet."""
    return EnvironmentFault("step_before_reset", environment=where)


def picture_of(env: Any, copy: int | None = None) -> NDArray[np.uint8] | None:
    """What an environment (or, of a vector of them, its `copy`) renders, if that is a picture [height, width, 3]; None
    for anything else, or where it renders nothing."""
    if not hasattr(env, "render"):
        return None
    try:
        given = env.render()
    except NotImplementedError:
        return None
    if copy is not None and isinstance(given, tuple | list) and copy < len(given):
        given = given[copy]
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim == 3 and given.shape[2] == 3:
        return given
    return None


def copy_seeds(seed: int, copies: int) -> list[int]:
    """[E] distinct seeds below 2**31 (some environments take no larger ones), one for each copy, drawn from `seed`."""
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    # An odd stride visits every number once before it repeats one, and keeps neighbours apart.
    every = start + np.arange(copies, dtype=np.uint64) * np.uint64(0x9E3779B1)
    return [int(one) for one in every % np.uint64(2**31)]
