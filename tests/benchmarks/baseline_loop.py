"""The plain PyTorch loops that learners are compared with: independent modules on data that are already there.

In flow: a size. Out flow: optimiser steps of every policy, one after the other, each one CUDA graph where there is
CUDA. PPO: forward, loss with the advantages given, backward, clipping, Adam; the network is that of `ActorCritic`, an
LSTM if there is one, beside the inputs, and two perceptrons. IQN, where a segment is one transition: quantiles and
targets by the formulas of workers/algorithms/iqn.py, backward, clipping, torch's Adam, a softly updated target network.

Legend: `T` segment length, `B` segments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.iqn import estimates, quantile_huber
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.networks.q_policy import QNetworkSpec
from workers.policies.networks.quantile_network import IQNPolicy

__all__ = ["BareValues", "BaselineLoop", "CapturedLoop", "Size", "towers"]


@dataclass(frozen=True, slots=True)
class Size:
    """Of a measurement."""

    policies: int
    segments: int
    """Of each policy, in a step."""
    length: int = 64
    inputs: int = 64
    actions: int = 4
    hidden: tuple[int, ...] = (128, 128)
    recurrent: int = 0
    """Units of the LSTM; 0: none."""

    @property
    def rows(self) -> int:
        """Of all policies, in a step."""
        return self.policies * self.segments * self.length


def towers(size: Size) -> nn.ModuleList:
    """Perceptrons for logits and for the value, of what the LSTM gives beside the inputs."""
    found = nn.ModuleList()
    for outputs in (size.actions, 1):
        layers: list[nn.Module] = []
        for one, other in pairwise([size.inputs + size.recurrent, *size.hidden]):
            layers += [nn.Linear(one, other), nn.Tanh()]
        found.append(nn.Sequential(*layers, nn.Linear(size.hidden[-1], outputs)))
    return found


class _Network(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.cell = nn.LSTM(size.inputs, size.recurrent) if size.recurrent else None
        self.towers = towers(size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, B, I] -> logits [T, B, A] and values [T, B]."""
        if self.cell is not None:
            x = torch.cat([x, self.cell(x)[0]], 2)
        return self.towers[0](x), self.towers[1](x)[..., 0]


class CapturedLoop(ABC):
    """Updates of `many` independent networks on `device`, each recorded by itself."""

    def __init__(self, many: int, device: torch.device) -> None:
        self._recorders = [GraphCache(device) for _ in range(many)]

    def step(self) -> None:
        """One of every policy."""
        for number, recorder in enumerate(self._recorders):
            recorder.run("step", [lambda number=number: self._step(number)])  # type: ignore[misc] # of no argument

    def eager(self) -> None:
        """The same, one operation at a time."""
        for number in range(len(self._recorders)):
            self._step(number)

    @abstractmethod
    def _step(self, number: int) -> None:
        """That of one."""


class BaselineLoop(CapturedLoop):
    """`size.policies` of them on `device`."""

    def __init__(self, size: Size, device: torch.device) -> None:
        super().__init__(size.policies, device)
        cuda = device.type == "cuda"
        shape = (size.length, size.segments)
        self._networks = [_Network(size).to(device) for _ in range(size.policies)]
        self._optimizers = [
            torch.optim.Adam(network.parameters(), 1e-4, eps=1e-5, fused=cuda, capturable=cuda)
            for network in self._networks
        ]
        self._seen = torch.randn(*shape, size.inputs, device=device)
        self._action = torch.randint(0, size.actions, (*shape, 1), device=device)
        self._chance = torch.full(shape, -1.4, device=device)
        self._advantage, self._target = (torch.randn(shape, device=device) for _ in range(2))

    def _step(self, number: int) -> None:
        network, optimizer = self._networks[number], self._optimizers[number]
        logits, values = network(self._seen)
        log_policy = logits.log_softmax(2)
        ratio = (log_policy.gather(2, self._action)[..., 0] - self._chance).exp()
        gain = torch.minimum(ratio * self._advantage, ratio.clamp(0.8, 1.2) * self._advantage)
        entropy = -(log_policy.exp() * log_policy).sum(2).mean()
        loss = -gain.mean() + 0.5 * (values - self._target).square().mean() - 0.01 * entropy
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()


_QUANTILES = 8
_TAU = 0.005


class BareValues(CapturedLoop):
    """`size.policies` of them on `device`, all with the same `batch`."""

    def __init__(self, size: Size, batch: TransitionBatch, device: torch.device) -> None:
        super().__init__(size.policies, device)
        cuda = device.type == "cuda"
        self._networks = [
            IQNPolicy(QNetworkSpec((size.inputs,), size.actions, size.hidden, "tanh")).to(device)
            for _ in range(size.policies)
        ]
        self._optimizers = [
            torch.optim.Adam(network.online.parameters(), 1e-4, eps=1e-5, fused=cuda, capturable=cuda)
            for network in self._networks
        ]
        self._batch = batch
        self._fractions = torch.rand(2, _QUANTILES, device=device)

    def _step(self, number: int) -> None:
        network, optimizer = self._networks[number], self._optimizers[number]
        here, there = self._fractions
        found = estimates(network, self._batch, here, there, double=True)
        loss = quantile_huber(found.quantiles, found.target, here, 1.0).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.online.parameters(), 0.5)
        optimizer.step()
        with torch.no_grad():
            for target, online in zip(network.target.parameters(), network.online.parameters(), strict=True):
                target.lerp_(online, _TAU)
