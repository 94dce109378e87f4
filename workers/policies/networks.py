"""What all networks share: observations as input rows, orthogonal initial weights, perceptrons and running moments.

Legend: `N` rows, `I` elements of an observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor, nn

from workers.policies.collectives import ALONE, Ranks, moments
from workers.policies.kernels import Activation, tanh

__all__ = ["CLIP", "Perceptron", "RunningMoments", "dueled", "input_rows", "orthogonal"]

CLIP = 10.0
"""Normalised observations beyond this many standard deviations are cut, as in common PPO practice."""
HIDDEN_GAIN = sqrt(2.0)
STD_FLOOR = 1e-4


def input_rows(observation: Tensor, shape: Sequence[int]) -> Tensor:
    """[..., *shape] of any dtype -> [N, I] float32, flat and in C order."""
    return observation.reshape(-1, prod(shape)).to(torch.float32)


def dueled(heads: Tensor) -> Tensor:
    """A value and advantages [..., 1 + A] -> values of actions [..., A] (Wang et al. 2016, equation 9)."""
    value, advantage = heads[..., :1], heads[..., 1:]
    return value + advantage - advantage.mean(-1, keepdim=True)


def orthogonal(shape: Sequence[int], gain: float) -> Tensor:
    """An orthogonal matrix times `gain` (Saxe et al. 2014), or a stack of independent ones for three dimensions."""
    matrix = torch.empty(*shape)
    for part in matrix if matrix.dim() == 3 else (matrix,):
        nn.init.orthogonal_(part, gain)
    return matrix


class Perceptron(nn.Module):
    """Fully connected layers, each followed by the activation: [N, I] -> [N, hidden[-1]]."""

    def __init__(self, inputs: int, hidden: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.layers = nn.ModuleList()
        for units in hidden:
            layer = nn.Linear(inputs, units)
            nn.init.orthogonal_(layer.weight, HIDDEN_GAIN)
            nn.init.zeros_(layer.bias)
            self.layers.append(layer)
            inputs = units
        self.outputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        """[N, I] float32 -> [N, outputs]."""
        for layer in self.layers:
            x = tanh(layer(x)) if self.activation == "tanh" else layer(x).relu()
        return x


class RunningMoments(nn.Module):
    """Mean and variance of all rows seen, as buffers that travel with the weights.

    With `memory`, the past weighs at most `memory` times the rows being added, so that old rows are forgotten.
    `floor` is the least standard deviation as a fraction of the mean's size, for quantities that may become constant.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, features: int | None = None, memory: float | None = None, floor: float = 0.0) -> None:
        super().__init__()
        size = () if features is None else (features,)
        self.memory, self.floor = memory, floor
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor, ranks: Ranks = ALONE) -> None:
        """Adds `rows` [N, *features] of all `ranks`, some of which may have none, by the parallel formula (Chan, Golub
        & LeVeque 1979); no rows change nothing."""
        if ranks.size == 1 and not len(rows):
            return
        added, mean, variance = moments(rows, ranks)
        held = self.count if self.memory is None else self.count.clamp(max=self.memory * added)
        total = held + added
        delta = mean - self.mean
        squares = self.variance * held + variance * added + delta * delta * (held * added / total)
        self.mean.add_(delta * (added / total))
        self.variance.copy_(squares / total)
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """Standard deviation, float64, at least 1e-4 and `floor * |mean|`, so that a constant cannot divide by zero."""
        return torch.maximum(self.variance.sqrt(), self.mean.abs() * self.floor).clamp_(min=STD_FLOOR)

    def standard(self, rows: Tensor) -> Tensor:
        """Rows [N, *features] in units of the standard deviation around the mean, cut, float32."""
        return ((rows.double() - self.mean) / self.std).float().clamp(-CLIP, CLIP)

    def scalars(self) -> tuple[float, float]:
        """Mean and standard deviation as numbers, where there is one feature."""
        mean = self.mean.item()
        return mean, max(sqrt(self.variance.item()), self.floor * abs(mean), STD_FLOOR)
