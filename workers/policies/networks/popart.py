"""What all policies with a value in units of their own have in common: how large returns are, and how they are told.

In flow: value targets in the unit of the reward. Out flow: a value head whose numbers are of size 1, whatever rewards
are: `value = returns.mean + returns.std * head`.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from workers.policies.networks.normalization import RunningMoments
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective

__all__ = ["PopArtValue", "return_moments"]

RETURN_MEMORY = 10.0
"""Updates whose returns are remembered: returns grow while the policy learns."""

RETURN_FLOOR = 0.01
"""Least spread of returns as a fraction of their mean. When every episode goes equally well their spread vanishes, and
value errors in its unit would drown the policy's gradient in the common norm."""


def return_moments() -> RunningMoments:
    """Of returns, before there are any."""
    return RunningMoments(memory=RETURN_MEMORY, floor=RETURN_FLOOR)


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
        head so that every value stays what it was (PopArt: van Hasselt et al. 2016, section 2.2)."""
        mean, std = self.returns.mean.clone(), self.returns.std
        self.returns.update(targets, ranks)
        weight, bias = self.value_head
        weight.mul_((std / self.returns.std).float())
        bias.copy_((bias * std + mean - self.returns.mean) / self.returns.std)
