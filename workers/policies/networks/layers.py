"""What all networks share: observations as input rows, orthogonal initial weights, perceptrons, running moments, and a
linear layer that explores by noise in its weights, drawn anew for each row (Fortunato et al. 2018, section 3).

Legend: `N` or `B` rows, `I` inputs, `O` outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective, merged_moments
from workers.policies.tensors.kernels import Activation, tanh, to_float32

__all__ = [
    "CLIP",
    "NoisyLinear",
    "Perceptron",
    "RunningMoments",
    "apply_head",
    "dueling",
    "factorised_noise",
    "flatten_inputs",
    "head_of",
    "noise_size",
    "orthogonal",
]

CLIP = 10.0
"""Normalised observations beyond this many standard deviations are cut, as in common PPO practice."""
HIDDEN_GAIN = sqrt(2.0)
STD_FLOOR = 1e-4


def flatten_inputs(observation: Tensor, shape: Sequence[int]) -> Tensor:
    """[..., *shape] of any dtype -> [N, I] float32, flat and in C order."""
    return observation.reshape(-1, prod(shape)).to(torch.float32)


def dueling(heads: Tensor) -> Tensor:
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
    def update(self, rows: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds `rows` [N, *features] of all `ranks`, some of which may have none, by the parallel formula (Chan, Golub
        & LeVeque 1979); no rows change nothing."""
        if ranks.size == 1 and not len(rows):
            return
        added, mean, variance = merged_moments(rows, ranks)
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


SPREAD = 0.5
"""Of the first scales: times 1 / sqrt(I) (the paper's sigma_0)."""


def factorised_noise(noise: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    """Normal numbers [..., I + O] -> factors of a row's inputs [..., I] and outputs [..., O]: sign(z) * sqrt(|z|)
    (section 3(b), factorised noise)."""
    factors = noise.sign() * noise.abs().sqrt()
    return factors[..., :inputs], factors[..., inputs:]


class NoisyLinear(nn.Linear):
    """`weight` and `bias` are means, `weight_scale` [O, I] and `bias_scale` [O] standard deviations."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight_scale = nn.Parameter(torch.full((outputs, inputs), SPREAD / sqrt(inputs)))
        self.bias_scale = nn.Parameter(torch.full((outputs,), SPREAD / sqrt(inputs)))

    def noisy(self, x: Tensor, noise: Tensor) -> Tensor:
        """Inputs [B, I] and normal numbers [B, I + O] -> [B, O]; without noise the layer is a plain one."""
        entering, leaving = factorised_noise(noise, self.in_features)
        return self(x) + leaving * linear(x * entering, self.weight_scale, self.bias_scale)


def apply_head(head: nn.Linear, x: Tensor, noise: Tensor | None) -> Tensor:
    """What `head` gives, with `noise` where there is some."""
    if noise is None:
        return to_float32(head(x))
    assert isinstance(head, NoisyLinear)
    return to_float32(head.noisy(x, noise))


def noise_size(head: nn.Linear) -> int:
    """Normal numbers that `head` takes for a row: I + O, or none."""
    return head.in_features + head.out_features if isinstance(head, NoisyLinear) else 0


def head_of(inputs: int, outputs: int, noisy: bool) -> nn.Linear:
    """A last layer, its means as all last layers begin."""
    head = NoisyLinear(inputs, outputs) if noisy else nn.Linear(inputs, outputs)
    nn.init.orthogonal_(head.weight, 1.0)
    nn.init.zeros_(head.bias)
    return head
