"""From the values of a team's members to the team's: the monotonic mixing network of QMIX (Rashid et al. 2018).

In flows: each member's value of its choice, and all that the team sees. Out flow: the team's value, which never falls
where a member's rises: the network that mixes has weights of one sign, made of what the team sees by others
(hypernetworks).

Legend: `B` rows, `S` numbers of a state, `M` members, `U` units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from workers.policies.kernels import whole

__all__ = ["Mixer"]


class Mixer(nn.Module):
    """One hidden layer of `units`; its last bias is a perceptron of the state with one layer of as many."""

    def __init__(self, inputs: int, members: int, units: int) -> None:
        super().__init__()
        self.members = members
        self.first = nn.Linear(inputs, members * units)
        self.first_bias = nn.Linear(inputs, units)
        self.last = nn.Linear(inputs, units)
        self.last_bias = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, 1))

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Values [B, M] in states [B, S] -> [B]: `elu(q |W1(s)| + b1(s)) |w2(s)| + b2(s)` (section 4.1, figure 2)."""
        weight = self.first(state).abs().view(len(values), self.members, -1)
        hidden = elu(torch.bmm(values[:, None], weight)[:, 0] + self.first_bias(state))
        return whole((hidden * self.last(state).abs()).sum(1) + self.last_bias(state)[:, 0])
