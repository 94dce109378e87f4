"""The policy of DQN: mean returns of each action (Mnih et al. 2015).

In flow: stacked observations. Out flows: epsilon-greedy actions (acting), or mean returns (learning).
Legend: `B` rows, `I` inputs, `A` actions.
"""

from __future__ import annotations

from torch import Tensor

from workers.policies.networks.layers import apply_head, dueling
from workers.policies.networks.q_policy import QNetwork, QNetworkSpec, QPolicy


class ValueTower(QNetwork):
    """One network (online or target)."""

    def __init__(self, spec: QNetworkSpec) -> None:
        super().__init__()
        self.dueling = spec.dueling
        self.perceptron = spec.perceptron()
        self.head = spec.head(self.perceptron.outputs, spec.actions + spec.dueling)

    def head_outputs(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """-> mean returns [B, A]"""
        heads = apply_head(self.head, features, noise)
        return dueling(heads) if self.dueling else heads


class DQNPolicy(QPolicy):
    """Online and target network with the exploration rate."""

    online: ValueTower
    target: ValueTower

    def __init__(self, spec: QNetworkSpec, epsilon: float = 1.0) -> None:
        super().__init__(spec.shape, spec.actions, spec.frames, epsilon, ValueTower(spec), ValueTower(spec))
