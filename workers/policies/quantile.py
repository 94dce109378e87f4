"""The policy of IQN: the distribution of returns as implicit quantile functions (Dabney et al. 2018, section 3).

In flow: stacked observations. Out flows: epsilon-greedy actions (acting), or returns' quantiles and means (learning).

The quantile function of action a is `sum_h psi_h(x) * phi_h(tau) * W[h, a]`: a perceptron psi of the observation, a
cosine embedding phi of the quantile fraction, and a linear head. Being linear behind the product, phi and W make one
matrix for fractions common to all rows, and the mean over fractions is the head applied to psi times the mean of phi:
learning and acting cost little more than a plain perceptron.

Legend: `B` rows, `F` stacked frames, `N` quantile fractions, `A` actions, `H` units of the last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod

import torch
from torch import Tensor, nn

from workers.policies.greedy import EpsilonGreedy
from workers.policies.kernels import Activation
from workers.policies.networks import Perceptron, dueled

__all__ = ["QuantileNetwork", "QuantileTower"]


class QuantileTower(nn.Module):
    """One network (online or target). With `dueling`, the head gives a value and advantages (Wang et al. 2016)."""

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], activation: Activation, cosines: int, dueling: bool
    ) -> None:
        super().__init__()
        self.cosines, self.dueling = cosines, dueling
        self.perceptron = Perceptron(inputs, hidden, activation)
        self.embedding = nn.Linear(cosines, self.perceptron.outputs)
        self.head = nn.Linear(self.perceptron.outputs, actions + dueling)
        nn.init.orthogonal_(self.head.weight, 1.0)
        nn.init.zeros_(self.head.bias)

    def embed(self, fractions: Tensor) -> Tensor:
        """Quantile fractions [N] in (0, 1) -> phi [N, H] (equation 4 of the paper)."""
        frequencies = torch.arange(self.cosines, device=fractions.device, dtype=fractions.dtype) * pi
        return self.embedding((fractions[:, None] * frequencies).cos()).relu()

    def quantiles(self, psi: Tensor, fractions: Tensor) -> Tensor:
        """psi [B, H] and fractions [N] common to all rows -> quantiles of the returns [B, N, A]."""
        mixed = (self.embed(fractions)[:, None] * self.head.weight).flatten(0, 1)
        heads = (psi @ mixed.T).view(len(psi), len(fractions), -1)
        return self._combined(heads + self.head.bias)

    def means(self, psi: Tensor, fractions: Tensor) -> Tensor:
        """psi [B, H] and fractions [N] -> mean returns [B, A] over these fractions."""
        return self._combined(self.head(psi * self.embed(fractions).mean(0)))

    def _combined(self, heads: Tensor) -> Tensor:
        return dueled(heads) if self.dueling else heads


class QuantileNetwork(EpsilonGreedy):
    """Online and target network with the exploration rate, and the fractions that mean returns are taken over."""

    online: QuantileTower
    target: QuantileTower
    midpoints: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        actions: int,
        hidden: Sequence[int],
        activation: Activation,
        *,
        frames: int = 1,
        cosines: int = 64,
        acting_quantiles: int = 12,
        dueling: bool = False,
        epsilon: float = 1.0,
    ) -> None:
        inputs = frames * prod(shape)
        towers = [QuantileTower(inputs, actions, hidden, activation, cosines, dueling) for _ in range(2)]
        super().__init__(shape, actions, frames, epsilon, *towers)
        self.register_buffer("midpoints", (torch.arange(acting_quantiles) + 0.5) / acting_quantiles)

    def means(self, x: Tensor) -> Tensor:
        """[B, F * I] -> mean returns [B, A] by the online network."""
        return self.online.means(self.online.perceptron(x), self.midpoints)
