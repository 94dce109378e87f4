"""Normalization by the mean and variance of all that was seen: of observations, and of returns (PopArt).

A value head with `PopArtValue` has outputs of size 1, whatever the reward: `value = returns.mean + returns.std * head`.
In flows: rows of observations; value targets in the unit of the reward.
"""

from __future__ import annotations

from abc import abstractmethod
from math import sqrt

import torch
from torch import Tensor, nn

from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective, merged_moments

CLIP = 10.0
"""Normalised observations beyond this many standard deviations are cut, as in common PPO practice."""
STD_FLOOR = 1e-4
RETURN_MEMORY = 10.0
"""Updates whose returns are remembered: returns grow while the policy learns."""

RETURN_FLOOR, RETURN_LEAST = 0.01, 1.0
"""Least spread of returns, as a fraction of their mean and in the unit of the reward. When every episode goes equally
well, or rewards are rare, their spread vanishes, and value errors in its unit would drown the policy's gradient in the
common norm: one reward of 1 in a hundred thousand steps of MiniGrid is as much as the thousand errors before it."""


class RunningMoments(nn.Module):
    """Mean and variance of all rows seen, as buffers that travel with the weights.

    With `memory`, the past weighs at most `memory` times the rows being added, so that old rows are forgotten.
    `least` is the least standard deviation, and `floor` the least as a fraction of the mean's size, for quantities that
    may become constant. While it is `held` it stays as it is.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(
        self, features: int | None = None, memory: float | None = None, floor: float = 0.0, least: float = STD_FLOOR
    ) -> None:
        super().__init__()
        size = () if features is None else (features,)
        self.memory, self.floor, self.least, self.held = memory, floor, least, False
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds `rows` [N, *features] of all `ranks`, some of which may have none, by the parallel formula (Chan, Golub
        & LeVeque 1979); no rows change nothing."""
        if self.held or (ranks.size == 1 and not len(rows)):
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
        """Standard deviation, float64, at least `least` and `floor * |mean|`: a constant cannot divide by zero."""
        std = self.variance.sqrt()
        return (torch.maximum(std, self.mean.abs() * self.floor) if self.floor else std).clamp_(min=self.least)

    def standard(self, rows: Tensor) -> Tensor:
        """Rows [N, *features] in units of the standard deviation around the mean, cut, float32."""
        return ((rows - self.mean) / self.std).clamp(-CLIP, CLIP).float()

    def scalars(self) -> tuple[float, float]:
        """Mean and standard deviation as numbers, where there is one feature."""
        mean = self.mean.item()
        return mean, max(sqrt(self.variance.item()), self.floor * abs(mean), self.least)


def return_moments() -> RunningMoments:
    """Of returns, before there are any."""
    return RunningMoments(memory=RETURN_MEMORY, floor=RETURN_FLOOR, least=RETURN_LEAST)


def keep_values_(weight: Tensor, bias: Tensor, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> None:
    """Rescales a linear head so that every value stays what it was when the mean and standard deviation of returns
    `before` become those `after` (PopArt: van Hasselt et al. 2016, section 2.2)."""
    (mean, std), (new_mean, new_std) = before, after
    weight.mul_((std / new_std).float())
    bias.copy_((bias * std + mean - new_mean) / new_std)


class PopArtValue(nn.Module):
    """A policy with a value head and the moments of its returns."""

    returns: RunningMoments

    @property
    @abstractmethod
    def value_head(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the head, which is linear."""

    def denormalize(self, value: Tensor) -> Tensor:
        """Normalised values in the unit of the reward, float32."""
        return value * self.returns.std.float() + self.returns.mean.float()

    def normalize(self, value: Tensor) -> Tensor:
        """Values in the unit of the reward as the value head would say them, float32."""
        return (value - self.returns.mean.float()) / self.returns.std.float()

    @torch.no_grad()
    def update_returns(self, targets: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds value targets [N] (unit of the reward) of all `ranks` to the return statistics and rescales the value
        head so that every value stays what it was."""
        if self.returns.held:
            return
        before = self.returns.mean.clone(), self.returns.std
        self.returns.update(targets, ranks)
        keep_values_(*self.value_head, before, (self.returns.mean, self.returns.std))
