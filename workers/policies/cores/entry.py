"""The core that the configuration names. A torch module of the user's own is built and tried before anything is learned
with it, in the manner of encoders.

In flow: a section, and the number of features in front of it. Out flow: the core, or a ConfigurationError in one
sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from protocol.config.network import AttentionCore, CellCore, EntryCore
from protocol.errors import ConfigurationError
from workers.policies.cores.attention import Attention
from workers.policies.cores.module_core import KEY, ModuleCore, State
from workers.policies.encoders.entry import NEAR, build_module, check_parameters
from workers.policies.networks.recurrent import Core, RecurrentCore
from workers.runtime.entry_points import calling

_STEPS, _ROWS, _LONG = 4, 3, 64
"""With which one is tried; and steps in which all of it has to be as one by one."""
_Run = Callable[[Tensor, State, Tensor], tuple[Tensor, State]]


def build_core(config: CellCore | AttentionCore | EntryCore, inputs: int) -> Core:
    """What remembers rows of so many features."""
    if isinstance(config, CellCore):
        return RecurrentCore(inputs, config.size, config.name)
    if isinstance(config, AttentionCore):
        attention = Attention(inputs, config.size, config.heads, config.window)
        return ModuleCore(attention, attention.initial_state(1))
    return _own(config, inputs)


def _own(config: EntryCore, inputs: int) -> ModuleCore:
    """The user's own, which keeps its state's form."""
    facts, given = {"key": KEY, "value": config.entry}, f"features [T, B, {inputs}]"
    module: Any = build_module(config, inputs, given, KEY)

    def failed(**at: Any) -> ConfigurationError:
        return ConfigurationError("network_failed", **facts, given=given, **at)

    def run(x: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        given = {**state, "x": x, "first": first}
        before = {name: one.clone() for name, one in given.items()}
        with calling(config.entry, failed):
            found = module(x, state, first)
        if not all(torch.equal(one, before[name]) for name, one in given.items()):
            raise ConfigurationError("network_modifies_input", **facts)
        told = found if isinstance(found, tuple) and len(found) == 2 else (None, found)
        if (form := _form(told[1], x.shape[1])) != expected:
            raise ConfigurationError("core_state_changes", **facts, found=form, expected=expected)
        wanted = str([*x.shape[:2], module.features])
        if not isinstance(told[0], Tensor) or str([*told[0].shape]) != wanted:
            shape = str([*told[0].shape]) if isinstance(told[0], Tensor) else type(told[0]).__name__
            raise ConfigurationError("network_gives_wrong_shape", **facts, found=shape, expected=wanted)
        return found[0], found[1]

    def begin(rows: int) -> State:
        with calling(config.entry, failed):
            state: State = module.initial_state(rows)
        return state

    state, more = begin(2), begin(_ROWS)
    expected = _form(state, 2)
    whole = isinstance(state, dict) and state and not any(part.endswith("?") for part in expected.split(", "))
    if not whole or _form(more, _ROWS) != expected:
        raise ConfigurationError("core_state_invalid", **facts, found=f"{expected} and {_form(more, _ROWS)}")
    run(torch.zeros(1, 2, inputs), state, torch.ones(1, 2, dtype=torch.bool))  # by which lazy layers are made
    _try(module, run, more, torch.randn(_LONG, _ROWS, inputs), facts)
    return ModuleCore(module, state)


def _try(module: nn.Module, run: _Run, begun: State, long: Tensor, facts: dict[str, str]) -> None:
    """ConfigurationError for what would go wrong later with `long`, of which all rows begin in the state `begun`."""
    x = long[:_STEPS]
    never = torch.zeros(x.shape[:2], dtype=torch.bool)
    first = never.clone()
    first[0] = True
    nothing = {name: torch.zeros_like(leaf) for name, leaf in begun.items()}
    whole, last = run(x, nothing, first)
    if not all(bool(one.isfinite().all()) for one in (whole, *last.values())):
        raise ConfigurationError("network_not_finite", **facts, found="normal random features")
    check_parameters(module, whole, facts["key"], facts["value"])
    with torch.no_grad():
        if not torch.equal(run(x, nothing, first)[0], whole):
            raise ConfigurationError("network_not_deterministic", **facts)
        before, after = ({name: leaf[1:] for name, leaf in state.items()} for state in (nothing, last))
        if not _near(run(x[:, 1:], before, first[:, 1:]), (whole[:, 1:], after)):
            raise ConfigurationError("network_rows_not_independent", **facts, part="forward")
        begins = torch.zeros(long.shape[:2], dtype=torch.bool)
        begins[0] = True
        outputs, state = [], nothing
        for step in range(_LONG):
            output, state = run(long[step : step + 1], state, begins[step : step + 1])
            outputs.append(output)
        if not _near((torch.cat(outputs), state), run(long, nothing, begins)):
            raise ConfigurationError("core_differs_by_step", **facts)
        again = first.clone()
        again[2] = True
        behind, end = run(x[2:], begun, never[2:])
        emptied = _near(run(x, begun, never), (whole, last)) and _near(run(x, last, first), (whole, last))
        if not emptied or not _near(run(x, last, again), (torch.cat([whole[:2], behind]), end)):
            raise ConfigurationError("core_not_emptied", **facts)


def _form(state: Any, rows: int) -> str:
    """Names, shapes and dtypes of a state of so many rows; a question mark is behind what is none."""
    if not isinstance(state, dict):
        return f"{type(state).__name__}?"
    return ", ".join(
        f"{name} {list(leaf.shape[1:])} {leaf.dtype}".replace("torch.", "")
        if isinstance(leaf, Tensor) and leaf.shape[:1] == (rows,) and isinstance(name, str)
        else f"{name} {list(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__}?"
        for name, leaf in state.items()
    )


def _near(found: tuple[Tensor, State], expected: tuple[Tensor, State]) -> bool:
    """Whether features and states are the same, to within the order of sums."""
    pairs = [(found[0], expected[0]), *((found[1][name], leaf) for name, leaf in expected[1].items())]
    return all(
        torch.allclose(one.double(), other.double(), rtol=NEAR, atol=NEAR * float(other.double().abs().max()))
        for one, other in pairs
        if other.numel()
    )
