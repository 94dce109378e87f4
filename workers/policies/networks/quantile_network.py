"""The policy of IQN: the distribution of returns as implicit quantile functions (Dabney et al. 2018, section 3).

In flow: stacked observations. Out flows: epsilon-greedy actions (acting), or returns' quantiles and means (learning).

The quantile function of action a is `sum_h psi_h(x) * phi_h(tau) * W[h, a]`: a perceptron psi of the observation, a
cosine embedding phi of the quantile fraction, and a linear head. Being linear behind the product, phi and W make one
matrix for fractions common to all rows, and the mean over fractions is the head applied to psi times the mean of phi:
learning and acting cost little more than a plain perceptron.

Legend: `B` rows, `F` stacked frames, `N` quantile fractions, `A` actions, `H` units of the last layer. With `K`
policies in front of weights and rows, everything is of each of them.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor, nn

from workers.policies.networks.layers import (
    NoisyLinear,
    affine,
    apply_head,
    dueling,
    factorised_noise,
    head_of,
)
from workers.policies.networks.q_policy import QNetwork, QNetworkSpec, QPolicy
from workers.policies.tensors.kernels import to_float32


class QuantileTower(QNetwork):
    """One network (online or target)."""

    head: nn.Linear

    def __init__(self, spec: QNetworkSpec, cosines: int) -> None:
        super().__init__()
        self.cosines, self.dueling = cosines, spec.dueling
        self.perceptron = spec.perceptron()
        self.embedding = nn.Linear(cosines, self.perceptron.outputs)
        self.head = head_of(self.perceptron.outputs, spec.actions + spec.dueling, spec.noisy)

    def head_outputs(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """-> psi [B, H], of which quantiles are asked for."""
        return features

    def embed(self, fractions: Tensor) -> Tensor:
        """Quantile fractions [N] in (0, 1) -> phi [N, H] (equation 4 of the paper)."""
        frequencies = torch.arange(self.cosines, device=fractions.device, dtype=fractions.dtype) * pi
        waves = (fractions[..., None] * frequencies).cos()
        return affine(waves, self.embedding.weight, self.embedding.bias).relu()

    def quantiles(self, psi: Tensor, fractions: Tensor, noise: Tensor | None = None) -> Tensor:
        """psi [B, H] and fractions [N] common to all rows -> quantiles of the returns [B, N, A]. `noise`: normal
        numbers for a noisy head, which is taken at its means without them."""
        head, phi = self.head, self.embed(fractions)
        heads = _mixed(psi, phi, head.weight) + head.bias[..., None, :]
        if noise is not None:
            assert isinstance(head, NoisyLinear)
            entering, leaving = factorised_noise(noise, head.in_features)
            spread = _mixed(psi * entering, phi, head.weight_scale) + head.bias_scale[..., None, :]
            heads = heads + leaving[..., None, :] * spread
        return self._combined(heads)

    def means(self, psi: Tensor, fractions: Tensor, noise: Tensor | None = None) -> Tensor:
        """psi [B, H] and fractions [N] -> mean returns [B, A] over these fractions; `noise` as for `quantiles`."""
        return self._combined(apply_head(self.head, psi * self.embed(fractions).mean(-2, keepdim=True), noise))

    def _combined(self, heads: Tensor) -> Tensor:
        return dueling(heads) if self.dueling else heads


def _mixed(psi: Tensor, phi: Tensor, weight: Tensor) -> Tensor:
    """sum_h psi[b, h] * phi[n, h] * weight[a, h], [B, N, A]."""
    mixed = (phi[..., None, :] * weight[..., None, :, :]).flatten(-3, -2)
    return to_float32(psi @ mixed.mT).unflatten(-1, (phi.shape[-2], weight.shape[-2]))


class IQNPolicy(QPolicy):
    """Online and target network with the exploration rate, and the fractions that mean returns are taken over."""

    online: QuantileTower
    target: QuantileTower
    midpoints: Tensor

    def __init__(
        self, spec: QNetworkSpec, epsilon: float = 1.0, *, cosines: int = 64, acting_quantiles: int = 12
    ) -> None:
        towers = [QuantileTower(spec, cosines) for _ in range(2)]
        super().__init__(spec.shape, spec.actions, spec.frames, epsilon, *towers)
        self.register_buffer("midpoints", (torch.arange(acting_quantiles) + 0.5) / acting_quantiles)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[B, F * I] and states [B, S] -> mean returns [B, A] by the online network, and the states after it."""
        psi, after = self.online.step(x, state)
        return self.online.means(psi, self.midpoints), after

    def means(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[B, F * I] -> mean returns [B, A] by the online network."""
        return self.online.means(self.online(x), self.midpoints, noise)
