"""Adam for several policies of equal shape as one, without a number that the host must see: steps, rates, norms and
faults are tensors that never move, as a CUDA graph asks. A policy whose loss or gradient is no number stops before the
step that it would have made.

In flows: the policies' optimisers (`gather`), a loss of each. Out flows: the stacked parameters changed in place,
moments and steps back (`scatter`), and with which loss and norm each ended, or failed (`facts`, `failed`).

Legend: `K` policies, `P` numbers of the trainable parameters of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from protocol.errors import TrainingFault
from workers.algorithms.common.adam import FlatAdam, adam_step, non_finite_update
from workers.algorithms.cuda_graphs.static_batch import HostScalars
from workers.algorithms.cuda_graphs.step_compiler import EAGER, StepCompiler
from workers.policies.stacked.stacked_weights import StackedWeights


def failed(losses: Sequence[float], norms: Sequence[float]) -> dict[int, TrainingFault]:
    """Who of K failed, by the loss and norm that each ended with, and what is to be said of it."""
    pairs = enumerate(zip(losses, norms, strict=True))
    return {i: non_finite_update(*pair) for i, pair in pairs if not all(map(math.isfinite, pair))}


class StackedAdam:
    """Of `optimizers`, each as it is alone, at its own step."""

    def __init__(self, optimizers: Sequence[FlatAdam], weights: StackedWeights, compiler: StepCompiler = EAGER) -> None:
        self._optimizers, self._weights, self._compiler = optimizers, weights, compiler
        self._betas, self._epsilon = optimizers[0].betas, optimizers[0].epsilon
        self._first, self._second = (torch.zeros_like(weights.gradient) for _ in range(2))
        many, device = len(optimizers), weights.gradient.device
        self._steps = torch.zeros(many, 1, dtype=torch.float64, device=device)
        self._rate, self._most = (torch.zeros(many, 1, device=device) for _ in range(2))
        self._alive = torch.ones(many, dtype=torch.bool, device=device)
        self.fault = torch.zeros(2, many, device=device)
        """[2, K]: loss and norm of the last step that was made, or, of who failed, of the one that was not."""
        self._given = HostScalars(3, many, device)
        self._sees = device.type == "cpu" and compiler is EAGER
        """Whether the host may look at a number; a pass over all gradients costs more."""

    def gather(self, rates: Sequence[float], most: Sequence[float]) -> None:
        """Moments and steps of this moment, the learning rates [K] and greatest gradient norms [K] of this update."""
        torch.stack([one.first for one in self._optimizers], out=self._first)
        torch.stack([one.second for one in self._optimizers], out=self._second)
        given = self._given.upload([float(one.steps) for one in self._optimizers], rates, most)
        for mine, row in zip((self._steps, self._rate, self._most), given, strict=True):
            mine.copy_(row[:, None])
        self._alive.fill_(True)
        self.fault.zero_()

    def facts(self) -> Tensor:
        """[3, K] float64: steps that were made, loss and norm, for the host to read."""
        return torch.cat([self._steps.T, self.fault.double()])

    def scatter(self, steps: Sequence[float]) -> None:
        """What has become of them, to all; `steps` [K] as read."""
        theirs = [moment for one in self._optimizers for moment in (one.first, one.second)]
        ours = [moment for pair in zip(self._first, self._second, strict=True) for moment in pair]
        torch._foreach_copy_(theirs, ours)  # one call of the device
        for one, made in zip(self._optimizers, steps, strict=True):
            one.steps = int(made)

    def step(self, loss: Tensor) -> Tensor:
        """One Adam step of each that has not failed, against the gradient of `loss` [K], cut to its norm; the norms [K]
        before."""
        self._weights.backward(loss)
        return self._compiler.call(StackedAdam._move, self, loss.detach())

    @torch.no_grad()
    def _move(self, loss: Tensor) -> Tensor:
        """The step, once the gradient is there; the norms [K] before."""
        gradient = self._weights.gradient
        norm = torch.linalg.vector_norm(gradient, dim=1)
        self.fault.copy_(torch.where(self._alive, torch.stack([loss, norm]), self.fault))
        self._alive.logical_and_(self.fault.isfinite().all(0))
        going = self._alive[:, None]
        gradient.mul_((self._most / (norm[:, None] + 1e-6)).clamp(max=1.0))
        if not self._sees or not self._alive.all():
            gradient.masked_fill_(~going, 0.0)
        self._steps.add_(going)
        one, two = self._betas
        rate = torch.where(going, self._rate / (1 - one**self._steps), 0.0).float()
        scale = (1 - two**self._steps).sqrt().float()
        # who failed keeps moments and parameters: its gradient, its rate and the shares of what is new are 0
        shares = (1 - one) * going.float(), (1 - two) * going.float()
        adam_step(self._weights.parameters, gradient, (self._first, self._second), shares, rate, scale, self._epsilon)
        return norm
