"""A linear layer that explores by itself: its weights are drawn anew for each row (Fortunato et al. 2018, section 3).

In flow: inputs and normal numbers. Out flow: outputs, whose spread the layer learns.
Legend: `B` rows, `I` inputs, `O` outputs.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from workers.policies.kernels import whole

__all__ = ["NoisyLinear", "head_of", "headed", "numbers", "shaped"]

SPREAD = 0.5
"""Of the first scales: times 1 / sqrt(I) (the paper's sigma_0)."""


def shaped(noise: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
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
        entering, leaving = shaped(noise, self.in_features)
        return self(x) + leaving * linear(x * entering, self.weight_scale, self.bias_scale)


def headed(head: nn.Linear, x: Tensor, noise: Tensor | None) -> Tensor:
    """What `head` gives, with `noise` where there is some."""
    if noise is None:
        return whole(head(x))
    assert isinstance(head, NoisyLinear)
    return whole(head.noisy(x, noise))


def numbers(head: nn.Linear) -> int:
    """Normal numbers that `head` takes for a row: I + O, or none."""
    return head.in_features + head.out_features if isinstance(head, NoisyLinear) else 0


def head_of(inputs: int, outputs: int, noisy: bool) -> nn.Linear:
    """A last layer, its means as all last layers begin."""
    head = NoisyLinear(inputs, outputs) if noisy else nn.Linear(inputs, outputs)
    nn.init.orthogonal_(head.weight, 1.0)
    nn.init.zeros_(head.bias)
    return head
