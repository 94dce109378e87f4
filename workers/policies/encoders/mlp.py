"""All that is seen as one vector: numbers as they are, each choice one-hot, through layers or as it is."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from workers.policies.encoders.observation_spec import LeafSpec, ObservationSpec
from workers.policies.networks.layers import Perceptron
from workers.policies.tensors.kernels import Activation


class MLP(nn.Module):
    """Any leaves: [N, *shape] each -> [N, features]."""

    def __init__(self, observation: ObservationSpec, hidden: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.leaves = list(observation.values())
        self.layers = Perceptron(sum(_width(leaf) for leaf in self.leaves), hidden, activation)
        self.features = self.layers.outputs

    def forward(self, observation: Tensor | dict[str, Tensor]) -> Tensor:
        """[N, features] float32."""
        given = {self.leaves[0].path: observation} if isinstance(observation, Tensor) else observation
        x = self.layers(torch.cat([_vector(leaf, given[leaf.path]) for leaf in self.leaves], 1))
        assert isinstance(x, Tensor)
        return x


def _width(leaf: LeafSpec) -> int:
    return sum(count for _, count in leaf.choices) if leaf.choices else prod(leaf.shape)


def _vector(leaf: LeafSpec, rows: Tensor) -> Tensor:
    """[N, *shape] -> [N, width]; an element with none of its values is zeros."""
    rows = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    if not leaf.choices:
        return rows.to(torch.float32)
    element = [k for k, (_, count) in enumerate(leaf.choices) for _ in range(count)]
    value = [first + i for first, count in leaf.choices for i in range(count)]
    return (rows.to(torch.int64)[:, element] == torch.tensor(value, device=rows.device)).to(torch.float32)
