"""What all networks share: observations as input rows, orthogonal initial weights, perceptrons, and a linear
layer that explores by noise in its weights, drawn anew for each row (Fortunato et al. 2018, section 3).

Legend: `N` or `B` rows, `I` inputs, `O` outputs. With `K` policies in front of weights and rows, everything is of each
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from workers.policies.networks.recurrent import Core, recalled
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective
from workers.policies.tensors.kernels import Activation, tanh, to_float32

HIDDEN_GAIN = sqrt(2.0)


def flatten_inputs(observation: Tensor, shape: Sequence[int]) -> Tensor:
    """[..., *shape] of any dtype -> [N, I] float32, flat and in C order."""
    return observation.reshape(-1, prod(shape)).to(torch.float32)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[N, I] by weights [O, I] and biases [O] -> [N, O]; of K policies [K, N, I], [K, O, I] and [K, 1, O]."""
    return linear(x, weight, bias) if weight.dim() == 2 else torch.baddbmm(bias, x, weight.mT)


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


def orthogonal_layer(layer: nn.Linear, gain: float) -> nn.Linear:
    """`layer`, whose weights are orthogonal from now on, times `gain`, and whose biases are 0."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class RowEncoder(nn.Module):
    """What reads rows of an observation first (workers/policies/encoders/policy_encoder.py)."""

    features: int

    @staticmethod
    def of(policy: nn.Module) -> RowEncoder | None:
        """What reads what `policy` sees, of the first of several networks that do."""
        return next((one for one in policy.modules() if isinstance(one, RowEncoder)), None)

    def observe(self, rows: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds rows that all `ranks` saw to the statistics that it keeps."""
        raise NotImplementedError

    def reader(self, path: str) -> str:
        """What reads the leaf `path`, in a word or two."""
        raise NotImplementedError

    def flattens(self, path: str) -> bool:
        """Whether each number of the leaf `path` is an input of its own."""
        raise NotImplementedError

    def scale(self, path: str) -> float | None:
        """What the bytes of the image at `path` are divided by; None: it is none, or nothing of ours reads it so."""
        raise NotImplementedError


class Perceptron(nn.Module):
    """Fully connected layers, each followed by the activation: [N, I] -> [N, hidden[-1]]; of what an `encoder` gives of
    rows, where there is one, and a `core` remembers, which is behind it."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        activation: Activation,
        encoder: RowEncoder | None = None,
        core: Core | None = None,
    ) -> None:
        super().__init__()
        self.activation, self.encoder, self.core = activation, encoder, core
        if encoder is not None:
            inputs = encoder.features
        if core is not None:
            inputs += core.size
        self.layers = nn.ModuleList()
        for units in hidden:
            self.layers.append(orthogonal_layer(nn.Linear(inputs, units), HIDDEN_GAIN))
            inputs = units
        self.outputs = inputs

    def forward(self, x: Tensor, recall: RecurrentContext | None = None) -> Tensor:
        """[N, I] float32, or rows for the encoder -> [N, outputs]; `recall`: how they hang together, for the core."""
        if self.encoder is not None:
            x = self.encoder(x)
        return self._layers(recalled(self.core, x, recall))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The same of one row of each stream in states [N, S], and the states after it."""
        assert self.core is not None
        if self.encoder is not None:
            x = self.encoder(x)
        features, after = self.core.step(x, state)
        return self._layers(torch.cat([x, features], 1)), after

    def _layers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = affine(x, layer.weight, layer.bias)
            x = tanh(x) if self.activation == "tanh" else x.relu()
        return x


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
        spread = affine(x * entering, self.weight_scale, self.bias_scale)
        return affine(x, self.weight, self.bias) + leaving * spread


def apply_head(head: nn.Linear | None, x: Tensor, noise: Tensor | None) -> Tensor:
    """What `head` gives, with `noise` where there is some; `x` where there is no head."""
    if head is None:
        return x
    if noise is None:
        return to_float32(affine(x, head.weight, head.bias))
    assert isinstance(head, NoisyLinear)
    return to_float32(head.noisy(x, noise))


def noise_size(head: nn.Linear | None) -> int:
    """Normal numbers that `head` takes for a row: I + O, or none."""
    return head.in_features + head.out_features if isinstance(head, NoisyLinear) else 0


def head_of(inputs: int, outputs: int, noisy: bool) -> nn.Linear:
    """A last layer, its means as all last layers begin."""
    return orthogonal_layer(NoisyLinear(inputs, outputs) if noisy else nn.Linear(inputs, outputs), 1.0)
