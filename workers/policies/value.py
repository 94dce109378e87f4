"""The policy of DQN: mean returns of each action (Mnih et al. 2015).

In flow: stacked observations. Out flows: epsilon-greedy actions (acting), or mean returns (learning).
Legend: `B` rows, `I` inputs, `A` actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from workers.policies.greedy import EpsilonGreedy
from workers.policies.kernels import Activation
from workers.policies.networks import Perceptron, dueled

__all__ = ["ValueNetwork", "ValueTower"]


class ValueTower(nn.Module):
    """One network (online or target). With `dueling`, the head gives a value and advantages (Wang et al. 2016)."""

    def __init__(self, inputs: int, actions: int, hidden: Sequence[int], activation: Activation, dueling: bool) -> None:
        super().__init__()
        self.dueling = dueling
        self.perceptron = Perceptron(inputs, hidden, activation)
        self.head = nn.Linear(self.perceptron.outputs, actions + dueling)
        nn.init.orthogonal_(self.head.weight, 1.0)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, I] float32 -> mean returns [B, A]."""
        heads = self.head(self.perceptron(x))
        return dueled(heads) if self.dueling else heads


class ValueNetwork(EpsilonGreedy):
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
        epsilon: float = 1.0,
    ) -> None:
        inputs = frames * prod(shape)
        towers = [ValueTower(inputs, actions, hidden, activation, dueling) for _ in range(2)]
        super().__init__(shape, actions, frames, epsilon, *towers)

    def means(self, x: Tensor) -> Tensor:
        """[B, F * I] -> mean returns [B, A] by the online network."""
        return self.online(x)
