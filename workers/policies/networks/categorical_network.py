"""The policy of C51: the distribution of returns as chances of fixed values, the atoms (Bellemare et al. 2017).

In flow: stacked observations. Out flows: epsilon-greedy actions (acting), or the chances of returns (learning).
Legend: `B` rows, `I` inputs, `A` actions, `Z` atoms.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from workers.policies.networks.layers import apply_head, dueling
from workers.policies.networks.q_policy import QNetwork, QNetworkSpec, QPolicy


class CategoricalTower(QNetwork):
    """One network (online or target). With dueling, each atom has a value and advantages (Hessel et al. 2018)."""

    def __init__(self, spec: QNetworkSpec, atoms: int) -> None:
        super().__init__()
        self.atoms, self.dueling = atoms, spec.dueling
        self.perceptron = spec.perceptron()
        self.head = spec.head(self.perceptron.outputs, atoms * (spec.actions + spec.dueling))

    def head_outputs(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """-> logarithms of the chances of each atom [B, Z, A]"""
        heads = apply_head(self.head, features, noise)
        heads = heads.view(-1, self.atoms, heads.shape[1] // self.atoms)
        return (dueling(heads) if self.dueling else heads).log_softmax(1)


class C51Policy(QPolicy):
    """Online and target network with the exploration rate, and the atoms."""

    online: CategoricalTower
    target: CategoricalTower
    support: Tensor
    """[Z]: the returns that the atoms stand for, at equal distances"""

    def __init__(
        self, spec: QNetworkSpec, epsilon: float = 1.0, *, atoms: int = 51, v_min: float = -10.0, v_max: float = 10.0
    ) -> None:
        towers = [CategoricalTower(spec, atoms) for _ in range(2)]
        super().__init__(spec.shape, spec.actions, spec.frames, epsilon, *towers)
        self.register_buffer("support", torch.linspace(v_min, v_max, atoms))
        self.register_load_state_dict_pre_hook(_refuse_others)

    def means(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[B, F * I] -> mean returns [B, A] by the online network."""
        return self.mean(self.online(x, noise))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[B, F * I] and states [B, S] -> mean returns [B, A] by the online network, and the states after it."""
        log_chances, after = self.online.step(x, state)
        return self.mean(log_chances), after

    def mean(self, log_chances: Tensor) -> Tensor:
        """[B, Z, A] -> mean returns [B, A]."""
        return (log_chances.exp() * self.support[:, None]).sum(1)


def _refuse_others(network: C51Policy, state: Mapping[str, Tensor], *_: object) -> None:
    """ValueError for the state of a network with other atoms, which would take the place of these unseen."""
    theirs, mine = state.get("support"), network.support
    if theirs is not None and theirs.shape == mine.shape and not torch.equal(theirs.cpu(), mine.cpu()):
        raise ValueError(
            f"its returns lie from {theirs[0]:g} to {theirs[-1]:g}, those of the configuration from {mine[0]:g} to "
            f"{mine[-1]:g}: set v_min and v_max as they were"
        )
