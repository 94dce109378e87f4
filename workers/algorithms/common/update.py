"""What all updates keep, and what becomes of one: metrics, or why there were none; several updates, each by itself.

In flows: updates, and a batch for each. Out flow: an outcome of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from protocol.errors import TrainingFault
from workers.algorithms.common.adam import FlatAdam
from workers.runtime.torch_setup import FLOAT32, Precision

Outcome = dict[str, float] | TrainingFault
"""Metrics of an update, or why there was none."""
Given = TypeVar("Given", contravariant=True)


class Update(Protocol[Given]):
    """What makes an update of a batch."""

    def update(self, given: Given, progress: float, /) -> dict[str, float]:
        """Metrics; TrainingFault where there are none."""


def update_each(updates: Sequence[Update[Given]], given: Sequence[Given], progress: Sequence[float]) -> list[Outcome]:
    """Each update by itself."""
    outcomes: list[Outcome] = []
    for update, batch, part in zip(updates, given, progress, strict=True):
        try:
            outcomes.append(update.update(batch, part))
        except TrainingFault as fault:
            outcomes.append(fault)
    return outcomes


class Resumable:
    """What goes on after a restart as if there had been none."""

    arithmetic: Precision = FLOAT32
    optimizer: FlatAdam
    generator: torch.Generator
    """What an update draws by."""

    @property
    def train_steps(self) -> int:
        """Optimiser steps so far."""
        return self.optimizer.steps

    def state(self) -> dict[str, Tensor]:
        """Optimiser moments, step count and random state, in host memory: with the weights all that a resume needs."""
        return {**self.optimizer.state(), "generator": self.generator.get_state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        self.optimizer.load_state(state)
        self.generator.set_state(state["generator"])
