"""A policy's part of a cut of lock-step: all that its learner remembers between two rounds.

In flows: the member's policy, update, what feeds it, its rounds and their log. Out flow: plain arrays; and, when all
workers of the run begin anew, the same parts as they were, and the version and rows they stood at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from workers.algorithms.build import Update
from workers.learning.buffers.build import Buffer
from workers.learning.buffers.lockstep_rounds import LockstepRounds
from workers.policies.build import Policy
from workers.policies.checkpoint import to_cpu
from workers.policies.networks.rnd_networks import RNDNetworks
from workers.runtime.lockstep_checkpoints import LockstepCheckpoints
from workers.runtime.state_capture import State, strip_prefix

__all__ = ["LearnerCheckpoint", "LearnerProgress"]


class LearnerProgress(NamedTuple):
    """Where a member stood at a cut."""

    version: int
    rows: int


class LearnerCheckpoint:
    """Of the policy called `name`."""

    def __init__(
        self,
        cuts: LockstepCheckpoints,
        name: str,
        policy: Policy | RNDNetworks,
        update: Update,
        fed: Buffer,
        rounds: LockstepRounds,
    ) -> None:
        self._cuts, self._part = cuts, f"policy-{name}"
        self._policy, self._update, self._fed, self._rounds = policy, update, fed, rounds

    def write_if_due(self, number: int, standing: LearnerProgress) -> None:
        """After round `number`, once what was learned of it is published."""
        if self._cuts.due(number):
            self._cuts.write(self._part, number, self._state(number, standing))

    def load(self) -> LearnerProgress | None:
        """Goes back to the newest cut; None where there is none, and everybody begins at the beginning."""
        if self._cuts.newest is None:
            return None
        state = self._cuts.read(self._part)
        tensors = {
            name: torch.from_numpy(array) for name, array in state.items() if name.startswith(("weights.", "update."))
        }
        self._policy.load_state_dict(strip_prefix("weights.", tensors))
        self._update.load_state(strip_prefix("update.", tensors))
        self._fed.set_state(strip_prefix("fed.", state))
        self._rounds.set_state(strip_prefix("rounds.", state))
        return LearnerProgress(*state["standing"].tolist())

    def _state(self, number: int, standing: LearnerProgress) -> State:
        weights, update = to_cpu(self._policy.state_dict()), to_cpu(self._update.state())
        parts: dict[str, State] = {
            "weights": {name: tensor.numpy() for name, tensor in weights.items()},
            "update": {name: tensor.numpy() for name, tensor in update.items()},
            "fed": self._fed.get_state(),
            "rounds": self._rounds.get_state(),
        }
        state = {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}
        return {**state, "standing": np.array(standing, np.int64)}
