"""The bare PyTorch loop that figures of IQN on a GPU stand beside: independent networks on transitions that are there.

In flow: a size, of which a segment is one transition. Out flow: updates of every policy, one after the other, each one
CUDA graph where there is CUDA: quantiles and targets by the formulas of `iqn.py`, backward, clipping, torch's Adam, and
a target network that follows softly.
"""

from __future__ import annotations

import torch
from torch import nn

from workers.algorithms.iqn import estimates, quantile_huber
from workers.bench.bare import Recorded, Size
from workers.learning.batches import Transitions
from workers.policies.quantile import QuantileNetwork

__all__ = ["BareValues"]

_QUANTILES = 8
_TAU = 0.005


class BareValues(Recorded):
    """`size.policies` of them on `device`, all with the same `batch`."""

    def __init__(self, size: Size, batch: Transitions, device: torch.device) -> None:
        super().__init__(size.policies, device)
        cuda = device.type == "cuda"
        self._networks = [
            QuantileNetwork((size.inputs,), size.actions, size.hidden, "tanh").to(device) for _ in range(size.policies)
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
