"""A whole network of the user's own: what is seen goes in, what an algorithm needs comes out by name, and perhaps a
distribution of actions with it. It is tried before anything is learned with it.

In flow: `module:Class` and its keyword arguments. Out flow: the module, or a ConfigurationError in one sentence.

Legend: `N` rows, `K` choices, `D` amounts, `C` values of all choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, product
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from protocol.config.network import EntryNetwork
from protocol.errors import ConfigurationError
from workers.policies.distributions import Distribution
from workers.policies.encoders.entry import make_module, try_module
from workers.policies.encoders.observation_spec import ObservationSpec
from workers.runtime.entry_points import calling

KEY = "policy.network"
LEGAL = "legal"
"""What a distribution is told beside its network's outputs, where only some values are legal."""
_LEAST, _MOST, _NEAR = 2**-25, 128, 1e-3
"""The least of uniform numbers; of how many actions at most chances are added up, and how near to 1 they have to be."""


@dataclass(frozen=True)
class ActionSpec:
    """What an agent does: choices, each an index below its size, and amounts in units of half the range of a bounded
    box, 0 in its middle, or of an unbounded one as they are."""

    sizes: tuple[int, ...]
    """Values of each choice, in the order of the action's leaves"""
    amounts: int
    """How many"""
    masked: bool
    """Whether only some values are legal at a time"""


class OwnNetwork(nn.Module):
    """`module`, whose outputs have the shapes `forms`: for each row that is seen one row of all of them, the value
    last. `entry` is its name."""

    def __init__(self, module: nn.Module, forms: Mapping[str, tuple[int, ...]], action: ActionSpec, entry: str) -> None:
        super().__init__()
        self.module, self.action, self.entry = module, action, entry
        self._forms = dict(sorted(forms.items(), key=lambda one: one[0] == "value"))
        self._widths = [prod(form) for form in self._forms.values()]
        self.features = sum(self._widths)
        self.distributes = "value" in forms and _distributes(module)
        """Whether it brings a distribution of its own."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next((one.device for one in self.parameters()), torch.device("cpu"))

    def forward(self, observation: Any) -> Tensor:
        """What is seen -> [N, features] float32."""
        found = self.module(observation)
        parts = zip(self._forms, self._widths, strict=True)
        return torch.cat([found[name].reshape(-1, width).to(torch.float32) for name, width in parts], 1)

    def distribution(self, rows: Tensor, legal: Tensor | None) -> Distribution:
        """Of rows [N, features - 1], where values `legal` [N, C] may be chosen; None: all."""
        parts = zip(self._forms.items(), rows.split(self._widths[:-1], 1), strict=False)
        outputs = {name: part.reshape(-1, *form) for (name, form), part in parts}
        if self.action.masked:
            every = rows.new_ones((len(rows), sum(self.action.sizes)), dtype=torch.bool)
            outputs[LEGAL] = every if legal is None else legal
        found: Distribution = self.module.distribution(outputs)  # type: ignore[operator] # it has that method
        return found

    def check_legal(self, choices: Tensor, legal: Tensor | None) -> None:
        """ConfigurationError where one of `choices` [N, K] is not among the values `legal` [N, C]."""
        if legal is not None:
            begin = torch.tensor([0, *accumulate(self.action.sizes)][:-1], device=choices.device)
            if not bool(legal.gather(1, choices + begin).all()):
                raise ConfigurationError("distribution_breaks_mask", key=KEY, value=self.entry)


def build_network(
    config: EntryNetwork, action: ActionSpec, wanted: Mapping[str, tuple[int, ...]], observation: ObservationSpec
) -> OwnNetwork:
    """What `config` names, of which an algorithm needs outputs of the shapes `wanted`, tried on a few rows."""
    module = make_module(config, (observation, action, dict(wanted)), observation, KEY)
    forms = _forms(module, config.entry, wanted, observation)
    network = OwnNetwork(module, forms, action, config.entry)

    def learned(found: Tensor) -> Tensor:
        if not network.distributes:
            return found
        facts = {"key": KEY, "value": config.entry}
        with calling(config.entry, lambda **at: ConfigurationError("network_failed", given="outputs", **facts, **at)):
            return torch.cat([found, *_tried(network, found[:, :-1])], 1)

    try_module(network, observation, KEY, config.entry, learned)
    return network


def _distributes(module: nn.Module) -> bool:
    return callable(getattr(module, "distribution", None))


def _forms(
    module: nn.Module, entry: str, wanted: Mapping[str, tuple[int, ...]], observation: ObservationSpec
) -> dict[str, tuple[int, ...]]:
    """The shapes of what `module` gives for two rows of zeros, by which lazy layers are made: what is `wanted`; where
    it has a distribution of its own, the value and what that is made of."""
    facts = {"key": KEY, "value": entry}
    seen = {path: torch.zeros(2, *leaf.shape, dtype=leaf.dtype) for path, leaf in observation.items()}
    with calling(entry, lambda **at: ConfigurationError("network_failed", given=observation, **facts, **at)):
        found: Any = module(observation.given(seen))
    own = "value" in wanted and _distributes(module)
    needed = {"value": ()} if own else wanted
    expected = ", ".join(f"{name} {[2, *form]}" for name, form in needed.items())
    whole = isinstance(found, Mapping) and all(isinstance(one, Tensor) for one in found.values())
    forms = {str(name): tuple(one.shape) for name, one in found.items()} if whole else {}
    fits = all(forms.get(name) == (2, *form) for name, form in needed.items())
    others = forms.keys() - needed.keys()
    if not fits or LEGAL in forms or (bool(others) != own) or any(forms[name][:1] != (2,) for name in others):
        told = ", ".join(f"{name} {list(form)}" for name, form in forms.items()) or type(found).__name__
        expected += " and what its distribution needs, each with a first dimension of 2" if own else ""
        raise ConfigurationError("network_gives_wrong_shape", **facts, found=told, expected=expected)
    return {name: form[1:] for name, form in forms.items()}


def _tried(network: OwnNetwork, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [N, 1] of what is drawn for `rows` [N, ...], of which some values are not legal;
    ConfigurationError for what would go wrong later."""
    action, sizes = network.action, network.action.sizes
    legal = torch.rand(len(rows), sum(sizes)) < 0.5 if action.masked else None
    if legal is not None:
        for begin in [0, *accumulate(sizes)][:-1]:
            legal[:, begin] = True
    given = network.distribution(rows, legal)
    uniform = torch.rand(len(rows), len(sizes) + action.amounts).clamp(min=_LEAST)
    drawn = given.sample(uniform)
    for part, acted in (("sample", drawn), ("mode", given.mode())):
        _check_actions(network, part, acted, len(rows))
        network.check_legal(acted[0], legal)
    choices, amounts = drawn[0], drawn[1].detach()
    again = network.distribution(rows, legal).sample(uniform)
    if not (torch.equal(again[0], choices) and torch.equal(again[1], amounts)):
        raise _invalid(network, "sample", "other actions for the same uniform numbers", "the same actions")
    told = given.log_prob(choices, amounts), given.entropy()
    for part, one in zip(("log_prob", "entropy"), told, strict=True):
        if not isinstance(one, Tensor) or one.shape != (len(rows),) or not bool(one.isfinite().all()):
            found = (
                f"{list(one.shape)}, or numbers that are not finite" if isinstance(one, Tensor) else type(one).__name__
            )
            raise _invalid(network, part, found, f"finite numbers [{len(rows)}]")
    if not action.amounts and prod(sizes) <= _MOST:
        with torch.no_grad():
            each = (
                given.log_prob(torch.tensor(one).expand(len(rows), -1), amounts) for one in product(*map(range, sizes))
            )
            whole = torch.stack([one.exp() for one in each]).sum(0)
        if not bool(((whole - 1).abs() < _NEAR).all()):
            raise _invalid(network, "log_prob", f"chances that sum to {float(whole[0]):.4g} over all actions", "1")
    return told[0][:, None], told[1][:, None]


def _check_actions(network: OwnNetwork, part: str, acted: Any, rows: int) -> None:
    """ConfigurationError unless these are choices and amounts for so many rows."""
    sizes, amounts = network.action.sizes, network.action.amounts
    expected = f"choices [{rows}, {len(sizes)}] int64 below {list(sizes)} and amounts [{rows}, {amounts}] float32"
    pair = isinstance(acted, tuple) and len(acted) == 2 and all(isinstance(one, Tensor) for one in acted)
    told = " and ".join(f"{list(one.shape)} {one.dtype}" for one in acted) if pair else type(acted).__name__
    forms = [(one.shape, one.dtype) for one in acted] if pair else []
    if forms != [((rows, len(sizes)), torch.int64), ((rows, amounts), torch.float32)]:
        raise _invalid(network, part, told.replace("torch.", ""), expected)
    choices = acted[0]
    if bool((choices < 0).any()) or bool((choices >= torch.tensor(sizes, dtype=torch.int64)).any()):
        raise _invalid(network, part, f"choices from {int(choices.min())} to {int(choices.max())}", expected)


def _invalid(network: OwnNetwork, part: str, found: str, expected: str) -> ConfigurationError:
    facts = {"part": part, "found": found, "expected": expected}
    return ConfigurationError("distribution_invalid", key=KEY, value=network.entry, **facts)
