"""`FlatAdam` of several policies of equal shape as one: each at its own step, rate and greatest norm.

In flows: the policies' optimisers (`gather`), a loss of each. Out flows: the stacked parameters changed in place, and
moments and steps back (`scatter`).

Legend: `K` policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from workers.algorithms.common.adam import TINY, FlatAdam
from workers.policies.stacked.stacked_weights import StackedWeights

__all__ = ["StackedAdam"]


class StackedAdam:
    """`FlatAdam` over rows: each of `optimizers` as it is alone, at its own step."""

    def __init__(self, optimizers: Sequence[FlatAdam], weights: StackedWeights) -> None:
        self._optimizers, self._weights = optimizers, weights
        self._parameters, self._gradient = weights.parameters, weights.gradient
        self._betas, self._epsilon = optimizers[0].betas, optimizers[0].epsilon
        self._first, self._second = torch.zeros_like(self._gradient), torch.zeros_like(self._gradient)
        self._steps: list[int] = []
        self._rates: Sequence[float] = ()
        self._most = torch.empty(0)

    def gather(self, rates: Sequence[float], most: Sequence[float]) -> None:
        """Moments and steps of this moment, the learning rates [K] and greatest gradient norms [K] of this update."""
        torch.stack([one.first for one in self._optimizers], out=self._first)
        torch.stack([one.second for one in self._optimizers], out=self._second)
        self._steps = [one.steps for one in self._optimizers]
        self._rates, self._most = rates, self._parameters.new_tensor(most)

    def scatter(self, member: int) -> None:
        """What has become of them, to one optimiser."""
        one = self._optimizers[member]
        one.first.copy_(self._first[member])
        one.second.copy_(self._second[member])
        one.steps = self._steps[member]

    def backward(self, loss: Tensor) -> Tensor:
        """The gradients of `loss` [K], each cut to its norm; the norms [K] before."""
        self._weights.backward(loss)
        norm = torch.linalg.vector_norm(self._gradient, dim=1)
        self._gradient.mul_((self._most / (norm + 1e-6)).clamp(max=1.0)[:, None])
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """One Adam step of each."""
        self._steps = [steps + 1 for steps in self._steps]
        first, second = self._betas
        self._first.lerp_(self._gradient, 1 - first)
        self._second.mul_(second).addcmul_(self._gradient, self._gradient, value=1 - second)
        scale = [[math.sqrt(1 - second**steps)] for steps in self._steps]
        rate = [[rate / (1 - first**steps)] for rate, steps in zip(self._rates, self._steps, strict=True)]
        root = self._second.add(TINY).sqrt_().div_(self._gradient.new_tensor(scale)).add_(self._epsilon)
        self._parameters.addcdiv_(self._first * self._gradient.new_tensor(rate), root, value=-1)
