"""A whole network of the user's own, imported by the name that the run's configuration gives it, built, and tried with
its distribution before anything is learned with it.

In flow: `module:Class` and its keyword arguments. Out flow: the network, or a ConfigurationError in one sentence.

Legend: `N` rows, `K` choices, `D` amounts, `C` values of all choices.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import accumulate, product
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from protocol.config.network import EntryNetwork, Network
from protocol.errors import ConfigurationError
from workers.policies.action_encoding import ActionSpec
from workers.policies.encoders.entry import FORMS, make_module, try_module
from workers.policies.encoders.observation_spec import ObservationSpec
from workers.policies.encoders.own_network import KEY, LEGAL, OwnNetwork, distributes
from workers.runtime.entry_points import calling, import_entry_point

_LEAST = 2**-25
"""The least of uniform numbers."""
_MOST, _DRAWS = 128, 1024
"""Of how many actions at most the chances are added up; how often they are drawn then."""
_NEAR, _NEVER, _OFTEN = 1e-3, 1e-6, 0.1
"""How near to 1 their sum is, the chance of what is not legal, and how far from its chance an action may come."""


def build_network(
    config: EntryNetwork, action: ActionSpec, wanted: Mapping[str, tuple[int, ...]], observation: ObservationSpec
) -> OwnNetwork:
    """What `config` names, of which an algorithm needs outputs of the shapes `wanted`, tried on a few rows."""
    _refuse_parts(config)
    module = make_module(config, (observation, action, dict(wanted)), observation, KEY)
    forms = _forms(module, config.entry, wanted, observation)
    network = OwnNetwork(module, forms, action, config.entry, wanted)

    def learned(found: Tensor) -> Tensor:
        return torch.cat([found[:, network.acting :], *_try_distribution(network, found[:, : network.acting])], 1)

    try_module(network, observation, KEY, config.entry, *([learned] if network.distributes else []))
    return network


def _refuse_parts(config: EntryNetwork) -> None:
    """ConfigurationError where keys of networks of parts are beside the entry, and its class does not take them."""
    takes = inspect.signature(import_entry_point(config.entry, f"{KEY}.entry", FORMS)).parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        strange = [name for name in config.settings if name in Network.model_fields and name not in takes]
        if strange:
            raise ConfigurationError("own_network_with_parts", key=KEY, value=config.entry, found=", ".join(strange))


def _forms(
    module: nn.Module, entry: str, wanted: Mapping[str, tuple[int, ...]], observation: ObservationSpec
) -> dict[str, tuple[int, ...]]:
    """The shapes of what `module` gives for two rows of zeros, by which lazy layers are made: what is `wanted`; where
    it has a distribution of its own, what that is made of in the place of `policy`."""
    facts = {"key": KEY, "value": entry}
    seen = {path: torch.zeros(2, *leaf.shape, dtype=leaf.dtype) for path, leaf in observation.items()}
    with calling(entry, lambda **at: ConfigurationError("network_failed", given=observation, **facts, **at)):
        found: Any = module(observation.given(seen))
    own = "value" in wanted and distributes(module)
    needed = {name: form for name, form in wanted.items() if not own or name != "policy"}
    expected = ", ".join(f"{name} {[2, *form]}" for name, form in needed.items())
    whole = isinstance(found, Mapping) and all(isinstance(one, Tensor) for one in found.values())
    floats = whole and all(one.is_floating_point() for one in found.values())
    forms = {str(name): tuple(one.shape) for name, one in found.items()} if whole else {}
    fits = all(forms.get(name) == (2, *form) for name, form in needed.items())
    others = forms.keys() - needed.keys()
    strange = bool(others) != own or LEGAL in forms or any(forms[name][:1] != (2,) for name in others)
    if strange or not fits or not floats:
        told = ", ".join(f"{name} {list(one.shape)} {one.dtype}" for name, one in found.items()) if whole else ""
        told = told.replace("torch.", "") or type(found).__name__
        expected += " and floats that its distribution needs, each with a first dimension of 2" if own else " of floats"
        raise ConfigurationError("network_gives_wrong_shape", **facts, found=told, expected=expected)
    return {name: form[1:] for name, form in forms.items()}


def _try_distribution(network: OwnNetwork, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [N, 1] of what is drawn for `rows` [N, ...], of which some values are not legal;
    ConfigurationError for what would go wrong later."""
    action, before = network.action, rows.detach().clone()
    legal = _some_legal(action.sizes, len(rows)) if action.masked else None
    uniform = torch.rand(len(rows), len(action.sizes) + action.amounts).clamp(min=_LEAST)
    with torch.no_grad():
        network.sample_actions(rows, legal, None)
        choices, amounts, _ = network.sample_actions(rows, legal, uniform)
        again = network.sample_actions(rows, legal, uniform)
    if not torch.equal(rows, before):
        raise ConfigurationError("network_modifies_input", key=KEY, value=network.entry)
    if not (torch.equal(again[0], choices) and torch.equal(again[1], amounts)):
        raise network.invalid("sample", "other actions for the same uniform numbers", "the same actions")
    chance, entropy = network.evaluate_actions(rows, legal, choices, amounts)
    for part, one in (("log_prob", chance), ("entropy", entropy)):
        network.check_numbers(part, one, len(rows))
    if rows.requires_grad and not chance.requires_grad:
        raise network.invalid("log_prob", "numbers without a gradient", "ones that depend on outputs")
    with torch.no_grad():
        _check_rows(network, rows, legal, choices, amounts)
        if not action.amounts and prod(action.sizes) <= _MOST:
            _check_chances(network, rows, legal)
    return chance[:, None], entropy[:, None]


def _some_legal(sizes: tuple[int, ...], rows: int) -> Tensor:
    """Masks [N, C] of which the first leaves the last value of each choice, the next the first, others any."""
    legal = torch.rand(rows, sum(sizes)) < 0.5
    legal[:2] = False
    for begin, end in zip([0, *accumulate(sizes)], accumulate(sizes), strict=False):
        legal[0, end - 1] = legal[1:, begin] = True
    return legal


def _check_rows(network: OwnNetwork, rows: Tensor, legal: Tensor | None, choices: Tensor, amounts: Tensor) -> None:
    """ConfigurationError where a row gets other numbers when it is alone."""

    def told(at: slice) -> Tensor:
        mask = None if legal is None else legal[at]
        found = network.evaluate_actions(rows[at], mask, choices[at], amounts[at])
        return torch.stack([*found, network.sample_actions(rows[at], mask, None)[2]])[:, -1]

    if not torch.allclose(told(slice(None)), told(slice(-1, None)), rtol=_NEAR, atol=_NEAR):
        raise ConfigurationError("network_rows_not_independent", key=KEY, value=network.entry, part="distribution")


def _check_chances(network: OwnNetwork, rows: Tensor, legal: Tensor | None) -> None:
    """ConfigurationError unless chances of all actions sum to 1, those of what is not legal are 0, and actions come as
    often as they say."""
    sizes, count = network.action.sizes, len(rows)
    every = torch.tensor([*product(*map(range, sizes))])
    nothing = rows.new_zeros(count, 0)
    told = [network.evaluate_actions(rows, legal, one.expand(count, -1), nothing)[0].exp() for one in every]
    chances = torch.stack(told, 1)
    if not bool(((chances.sum(1) - 1).abs() < _NEAR).all()):
        raise network.invalid("log_prob", f"chances that sum to {float(chances.sum(1)[0]):.4g} over all actions", "1")
    if legal is not None:
        begin = torch.tensor([0, *accumulate(sizes)][:-1])
        may = legal[:, every + begin].all(2)
        if bool((chances[~may] > _NEVER).any()):
            raise ConfigurationError("distribution_breaks_mask", key=KEY, value=network.entry)
    mask = None if legal is None else legal[-1:].expand(_DRAWS, -1)
    uniform = torch.rand(_DRAWS, len(sizes)).clamp(min=_LEAST)
    drawn = network.sample_actions(rows[-1:].expand(_DRAWS, -1), mask, uniform)[0]
    often = (drawn[:, None] == every).all(2).float().mean(0)
    worst = int((often - chances[-1]).abs().argmax())
    if abs(float(often[worst] - chances[-1, worst])) > _OFTEN:
        found = f"{every[worst].tolist()} in {float(often[worst]):.0%} of draws"
        raise network.invalid("sample", found, f"{float(chances[-1, worst]):.0%}, as log_prob says")
