"""Several policies of DQN or IQN of equal shape as one: each layer of all of them is one batched product.

In flows: the policies' weights, rows of all of them side by side. Out flows: mean returns, or quantiles of returns, of
every row by its own policy, as `ValueTower` and `QuantileTower` give them to each alone.

Legend: `K` policies, `B` rows of each, `F` stacked frames, `I` inputs, `N` quantile fractions, `A` actions, `H` units
of the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi

import torch
from torch import Tensor

from workers.policies.networks.layers import dueling, factorised_noise
from workers.policies.networks.q_network import DQNPolicy, ValueTower
from workers.policies.networks.q_policy import QPolicy, stacked_rows
from workers.policies.networks.quantile_network import IQNPolicy, QuantileTower
from workers.policies.stacked.stacked_weights import StackedWeights
from workers.policies.tensors.kernels import tanh, to_float32

__all__ = ["StackedQuantiles", "StackedValues"]


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[K, B, I] by weights [K, O, I] and biases [K, 1, O] -> [K, B, O]."""
    return torch.baddbmm(bias, x, weight.mT)


class _Tower:
    """The online networks or the targets, whose names begin with `prefix`, of towers like `alike`."""

    def __init__(self, views: Mapping[str, Tensor], prefix: str, alike: ValueTower | QuantileTower) -> None:
        self._views, self._prefix = views, prefix
        self._dueling, self._activation = alike.dueling, alike.perceptron.activation
        self._layers = [self._named(f"perceptron.layers.{i}") for i in range(len(alike.perceptron.layers))]
        self.head = self._named("head")

    def perceptron(self, x: Tensor) -> Tensor:
        """[K, B, I] -> [K, B, H]."""
        for weight, bias in self._layers:
            x = _linear(x, weight, bias)
            x = tanh(x) if self._activation == "tanh" else x.relu()
        return x

    def headed(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """What the heads give for x [K, B, H], with normal numbers `noise` [K, B, H + A] where there are some."""
        heads = to_float32(_linear(x, *self.head))
        if noise is not None:
            entering, leaving = factorised_noise(noise, x.shape[-1])
            heads = heads + leaving * _linear(x * entering, *self.scale)
        return self.combined(heads)

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """Standard deviations of noisy heads."""
        return self._views[f"{self._prefix}head.weight_scale"], self._views[f"{self._prefix}head.bias_scale"]

    def combined(self, heads: Tensor) -> Tensor:
        """[..., 1 + A] -> [..., A], where a value and advantages are told."""
        return dueling(heads) if self._dueling else heads

    def _named(self, layer: str) -> tuple[Tensor, Tensor]:
        return self._views[f"{self._prefix}{layer}.weight"], self._views[f"{self._prefix}{layer}.bias"]


class _Values:
    """What both kinds have in common."""

    def __init__(self, policies: Sequence[QPolicy]) -> None:
        self.weights = StackedWeights(policies, lambda name: name.endswith((".bias", ".bias_scale")))
        self._frames, self._shape = policies[0].frames, policies[0].shape

    def inputs(self, observation: Tensor) -> Tensor:
        """[K, B, F, *shape] -> [K, B, F * I] float32."""
        rows = stacked_rows(observation.flatten(0, 1), self._frames, self._shape, observation.device)
        return rows.view(*observation.shape[:2], -1)


class StackedValues(_Values):
    """Of DQN's `policies`, which stay as they are until their weights are scattered."""

    def __init__(self, policies: Sequence[DQNPolicy]) -> None:
        super().__init__(policies)
        views = self.weights.views
        self._online, self._target = (_Tower(views, name, policies[0].online) for name in ("online.", "target."))

    def online(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """`inputs(...)` [K, B, I] -> mean returns [K, B, A]."""
        return self._online.headed(self._online.perceptron(x), noise)

    means = online

    def target(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """The same by the targets."""
        return self._target.headed(self._target.perceptron(x), noise)


class StackedQuantiles(_Values):
    """Of IQN's `policies`, which stay as they are until their weights are scattered."""

    def __init__(self, policies: Sequence[IQNPolicy]) -> None:
        super().__init__(policies)
        views = self.weights.views
        self.online, self.target = (_Quantiles(views, name, policies[0].online) for name in ("online.", "target."))
        self.midpoints = views["midpoints"]
        """[K, N] that mean returns are taken over."""

    def means(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """`inputs(...)` [K, B, I] -> mean returns [K, B, A]."""
        return self.online.means(self.online.perceptron(x), self.midpoints, noise)


class _Quantiles(_Tower):
    """As `QuantileTower` says, of each."""

    def __init__(self, views: Mapping[str, Tensor], prefix: str, alike: QuantileTower) -> None:
        super().__init__(views, prefix, alike)
        self._cosines, self._embedding = alike.cosines, self._named("embedding")

    def quantiles(self, psi: Tensor, fractions: Tensor, noise: Tensor | None = None) -> Tensor:
        """psi [K, B, H] and fractions [K, N], common to all rows of a policy -> quantiles of returns [K, B, N, A]."""
        phi, (weight, bias) = self._embed(fractions), self.head
        heads = _mixed(psi, phi, weight) + bias[:, :, None]
        if noise is not None:
            entering, leaving = factorised_noise(noise, psi.shape[-1])
            spread, spread_bias = self.scale
            heads = heads + leaving[:, :, None] * (_mixed(psi * entering, phi, spread) + spread_bias[:, :, None])
        return self.combined(heads)

    def means(self, psi: Tensor, fractions: Tensor, noise: Tensor | None = None) -> Tensor:
        """psi [K, B, H] and fractions [K, N] -> mean returns [K, B, A] over these fractions."""
        return self.headed(psi * self._embed(fractions).mean(1, keepdim=True), noise)

    def _embed(self, fractions: Tensor) -> Tensor:
        """[K, N] -> phi [K, N, H]."""
        frequencies = torch.arange(self._cosines, device=fractions.device, dtype=fractions.dtype) * pi
        return _linear((fractions[..., None] * frequencies).cos(), *self._embedding).relu()


def _mixed(psi: Tensor, phi: Tensor, weight: Tensor) -> Tensor:
    """sum_h psi[k, b, h] * phi[k, n, h] * weight[k, a, h], [K, B, N, A]."""
    mixed = (phi[:, :, None] * weight[:, None]).flatten(1, 2)
    return to_float32(psi @ mixed.mT).view(*psi.shape[:2], phi.shape[1], -1)
