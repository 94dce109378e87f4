"""Several policies of DQN or IQN of equal shape as one: each layer of all of them is one batched product.

In flows: the policies' weights, rows of all of them side by side. Out flows: mean returns, or quantiles of returns, of
every row by its own policy, as `ValueTower` and `QuantileTower` give them to each alone: these are their networks, with
weights [K, ...].

Legend: `K` policies, `B` rows of each, `F` stacked frames, `I` inputs, `N` quantile fractions, `A` actions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from workers.policies.networks.q_network import DQNPolicy
from workers.policies.networks.q_policy import QNetwork, QPolicy, stacked_rows
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.stacked.stacked_weights import StackedWeights

__all__ = ["StackedQuantiles", "StackedValues"]

Tower = TypeVar("Tower", bound=QNetwork)


class _Values:
    """What both kinds have in common. The policies stay as they are until their weights are stored."""

    def __init__(self, policies: Sequence[QPolicy]) -> None:
        self.weights = StackedWeights(policies, lambda name: name.endswith((".bias", ".bias_scale")))
        self._frames, self._shape = policies[0].frames, policies[0].shape

    def inputs(self, observation: Tensor) -> Tensor:
        """[K, B, F, *shape] -> [K, B, F * I] float32."""
        rows = stacked_rows(observation.flatten(0, 1), self._frames, self._shape, observation.device)
        return rows.view(*observation.shape[:2], -1)

    def _stacked(self, alike: Tower, prefix: str) -> Tower:
        """A network like `alike` with those weights of all whose names begin with `prefix`."""
        network = copy.deepcopy(alike)
        for name, _ in alike.named_parameters():
            owner, _, leaf = name.rpartition(".")
            layer = network.get_submodule(owner)
            delattr(layer, leaf)
            setattr(layer, leaf, self.weights.views[f"{prefix}{name}"])
        return network


class StackedValues(_Values):
    """Of DQN's `policies`."""

    def __init__(self, policies: Sequence[DQNPolicy]) -> None:
        super().__init__(policies)
        self.online = self._stacked(policies[0].online, "online.")
        self.target = self._stacked(policies[0].target, "target.")

    def means(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """`inputs(...)` [K, B, F * I] -> mean returns [K, B, A]."""
        found: Tensor = self.online(x, noise)
        return found


class StackedQuantiles(_Values):
    """Of IQN's `policies`."""

    def __init__(self, policies: Sequence[IQNPolicy]) -> None:
        super().__init__(policies)
        self.online = self._stacked(policies[0].online, "online.")
        self.target = self._stacked(policies[0].target, "target.")
        self.midpoints = self.weights.views["midpoints"]
        """[K, N] that mean returns are taken over."""

    def means(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """`inputs(...)` [K, B, F * I] -> mean returns [K, B, A]."""
        return self.online.means(self.online.perceptron(x), self.midpoints, noise)
