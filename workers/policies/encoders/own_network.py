"""A whole network of the user's own: what is seen goes in, what an algorithm needs comes out by name, and perhaps a
distribution of actions with it, whose actions are looked at before a world is given them.

In flow: the parts of an observation. Out flows: outputs as rows; actions, or a ConfigurationError in one sentence.

Legend: `N` rows, `K` choices, `D` amounts, `C` values of all choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from protocol.errors import ConfigurationError
from workers.policies.action_encoding import ActionSpec
from workers.policies.distributions import Distribution
from workers.runtime.entry_points import calling

KEY = "policy.network"
LEGAL = "legal"
"""What a distribution is told beside its network's outputs, where only some values are legal."""


class OwnNetwork(nn.Module):
    """`module`, whose outputs have the shapes `forms`: for each row that is seen one row of all of them, behind what
    nobody asked for those that are `wanted`, in their order. `entry` is its name."""

    def __init__(
        self,
        module: nn.Module,
        forms: Mapping[str, tuple[int, ...]],
        action: ActionSpec,
        entry: str,
        wanted: Iterable[str],
    ) -> None:
        super().__init__()
        self.module, self.action, self.entry = module, action, entry
        order = {name: place for place, name in enumerate(wanted)}
        self._forms = dict(sorted(forms.items(), key=lambda one: order.get(one[0], -1)))
        self._widths = [prod(form) for form in self._forms.values()]
        self.features = sum(self._widths)
        self._acting = [prod(form) for name, form in self._forms.items() if order.get(name, 0) == 0]
        self.acting = sum(self._acting)
        """How many of `features` actions are made of; these come first."""
        self.distributes = "value" in forms and distributes(module)
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
        """Of rows [N, acting], where values `legal` [N, C] may be chosen; None: all."""
        parts = zip(self._forms.items(), rows.split(self._acting, 1), strict=False)
        outputs = {name: part.reshape(-1, *form) for (name, form), part in parts}
        if self.action.masked and legal is None:
            legal = rows.new_ones((rows.shape[0], sum(self.action.sizes)), dtype=torch.bool)
        if self.action.masked and legal is not None:
            outputs[LEGAL] = legal
        found: Distribution = self.module.distribution(outputs)  # type: ignore[operator] # it has that method
        return found

    def sample_actions(
        self, rows: Tensor, legal: Tensor | None, uniform: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choices [N, K], amounts [N, D] and their log-probability [N] by numbers `uniform` [N, K + D], or without
        exploring. ConfigurationError for what no world can be given."""
        if not bool(rows.isfinite().all()):
            raise ConfigurationError("network_not_finite", key=KEY, value=self.entry, found="what was seen in the run")
        with self.calling():
            given = self.distribution(rows, legal)
            acted = given.mode() if uniform is None else given.sample(uniform)
        self._check_actions("mode" if uniform is None else "sample", acted, legal, len(rows))
        with self.calling():
            chance = given.log_prob(*acted)
        self.check_numbers("log_prob", chance, len(rows))
        return (*acted, chance)

    def evaluate_actions(
        self, rows: Tensor, legal: Tensor | None, choices: Tensor, amounts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] of what was done, with gradients."""
        with self.calling():
            given = self.distribution(rows, legal)
            told = given.log_prob(choices, amounts), given.entropy()
        for part, one in zip(("log_prob", "entropy"), told, strict=True):
            self.check_numbers(part, one, len(rows), finite=False)
        return told

    def calling(self) -> AbstractContextManager[None]:
        """In here its distribution is asked."""
        facts = {"key": KEY, "value": self.entry, "given": "outputs"}
        return calling(self.entry, lambda **at: ConfigurationError("network_failed", **facts, **at))

    def check_numbers(self, part: str, told: Any, rows: int, finite: bool = True) -> None:
        """ConfigurationError unless `told` are numbers [N] for so many rows."""
        fits = isinstance(told, Tensor) and told.shape == (rows,) and told.is_floating_point()
        if not fits or (finite and not bool(told.isfinite().all())):
            form = f"{list(told.shape)} {told.dtype}" if isinstance(told, Tensor) else type(told).__name__
            raise self.invalid(part, "numbers that are not finite" if fits else form, f"finite numbers [{rows}]")

    def invalid(self, part: str, found: str, expected: str) -> ConfigurationError:
        """What to say of its distribution."""
        facts = {"part": part, "found": found.replace("torch.", ""), "expected": expected}
        return ConfigurationError("distribution_invalid", key=KEY, value=self.entry, **facts)

    def _check_actions(self, part: str, acted: Any, legal: Tensor | None, rows: int) -> None:
        """ConfigurationError unless these are choices, legal ones, and finite amounts for so many rows."""
        sizes, amounts = self.action.sizes, self.action.amounts
        expected = f"choices [{rows}, {len(sizes)}] int64 below {list(sizes)} and amounts [{rows}, {amounts}] float32"
        pair = isinstance(acted, tuple) and len(acted) == 2 and all(isinstance(one, Tensor) for one in acted)
        told = " and ".join(f"{list(one.shape)} {one.dtype}" for one in acted) if pair else type(acted).__name__
        forms = [(one.shape, one.dtype) for one in acted] if pair else []
        if forms != [((rows, len(sizes)), torch.int64), ((rows, amounts), torch.float32)]:
            raise self.invalid(part, told, expected)
        choices = acted[0]
        if bool((choices < 0).any()) or bool((choices >= choices.new_tensor(sizes)).any()):
            raise self.invalid(part, f"choices from {int(choices.min())} to {int(choices.max())}", expected)
        if not bool(acted[1].isfinite().all()):
            raise self.invalid(part, "amounts that are not finite", expected)
        if legal is not None:
            begin = choices.new_tensor([0, *accumulate(sizes)][:-1])
            if not bool(legal.gather(1, choices + begin).all()):
                raise ConfigurationError("distribution_breaks_mask", key=KEY, value=self.entry)


def distributes(module: nn.Module) -> bool:
    """Whether it has what a distribution is made by."""
    return callable(getattr(module, "distribution", None))
