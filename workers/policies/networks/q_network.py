"""The policy of DQN: mean returns of each action (Mnih et al. 2015).

In flow: stacked observations. Out flows: epsilon-greedy actions (acting), or mean returns (learning).
Legend: `B` rows, `I` inputs, `A` actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

from workers.policies.networks.layers import Perceptron, apply_head, dueling, head_of
from workers.policies.networks.q_policy import QNetwork, QPolicy
from workers.policies.tensors.kernels import Activation

__all__ = ["DQNPolicy", "ValueTower"]


class ValueTower(QNetwork):
    """One network (online or target). With `dueling`, the head gives a value and advantages (Wang et al. 2016)."""

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], activation: Activation, dueling: bool, noisy: bool
    ) -> None:
        super().__init__()
        self.dueling = dueling
        self.perceptron = Perceptron(inputs, hidden, activation)
        self.head = head_of(self.perceptron.outputs, actions + dueling, noisy)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[B, I] float32 -> mean returns [B, A]. `noise`: normal numbers for a noisy head, which is taken at its means
        without them."""
        heads = apply_head(self.head, self.perceptron(x), noise)
        return dueling(heads) if self.dueling else heads


class DQNPolicy(QPolicy):
    """Online and target network with the exploration rate."""

    online: ValueTower
    target: ValueTower

    def __init__(
        self,
        shape: Sequence[int],
        actions: int,
        hidden: Sequence[int],
        activation: Activation,
        *,
        frames: int = 1,
        dueling: bool = False,
        noisy: bool = False,
        epsilon: float = 1.0,
    ) -> None:
        inputs = frames * prod(shape)
        towers = [ValueTower(inputs, actions, hidden, activation, dueling, noisy) for _ in range(2)]
        super().__init__(shape, actions, frames, epsilon, *towers)

    def means(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[B, F * I] -> mean returns [B, A] by the online network."""
        return self.online(x, noise)
