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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workers.policies.distributions import Noise
from workers.policies.kernels import Activation
from workers.policies.networks import Perceptron, input_rows

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
        if not self.dueling:
            return heads
        value, advantage = heads[..., :1], heads[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)


class QuantileNetwork(nn.Module):
    """Online and target network with the exploration rate, one unit for publication."""

    epsilon: Tensor
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
        super().__init__()
        self.shape, self.actions, self.frames = tuple(shape), actions, frames
        inputs = frames * prod(shape)
        self.online = QuantileTower(inputs, actions, hidden, activation, cosines, dueling)
        self.target = QuantileTower(inputs, actions, hidden, activation, cosines, dueling)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        self.register_buffer("epsilon", torch.tensor(epsilon, dtype=torch.float64))
        self.register_buffer("midpoints", (torch.arange(acting_quantiles) + 0.5) / acting_quantiles)

    def inputs(self, observation: Tensor) -> Tensor:
        """[B, F, *shape] -> [B, F * I] float32. Raises ValueError for another number of frames."""
        if observation.shape[1] != self.frames:
            raise ValueError(
                f"the policy stacks {self.frames} frames but was given {observation.shape[1]}; "
                "pass [B, F, *shape], newest frame last"
            )
        return input_rows(observation, (self.frames, *self.shape)).to(self.midpoints.device)

    @torch.inference_mode()
    def act(self, observation: Tensor, noise: Noise, *, greedy: bool = False) -> dict[str, NDArray]:
        """Epsilon-greedy actions for `observation` [B, F, *shape]: `action` int64 [B].

        Takes B float32 numbers and B integers from `noise`, or none when `greedy` (then epsilon is 0).
        """
        psi = self.online.perceptron(self.inputs(observation))
        action = self.online.means(psi, self.midpoints).argmax(1).cpu().numpy()
        if not greedy:
            explores = noise.random(len(action), np.float32) < self.epsilon.item()
            np.copyto(action, noise.integers(0, self.actions, len(action)), where=explores)
        return {"action": action}
