"""What a policy that is curious gets beside the world's rewards: a bonus for what was new to an auxiliary.

In flows: the weights of the auxiliary, adopted like an actor's, whenever there are newer ones; batches. Out flows:
batches with the bonus in their rewards; how large it was, and how old what it was computed with.

Nobody waits for an auxiliary: until its first weights come that have seen something the bonus is 0 (counted), and when
it is away the last ones serve on.
Legend: `B` segments, `T` segment length, `K` entries of the side table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.memory.shared_file import Counters
from protocol.weights.manifest import NOTHING, Manifest, Version
from workers.algorithms.common.batches import SegmentBatch
from workers.planning.auxiliary_plan import AuxiliaryPlan
from workers.policies.build import build
from workers.policies.tensors.flat_weights import flatten_

Adopt = Callable[[NDArray[np.uint8], Version], Version | None]
"""(memory [nbytes], version held) -> the version of newer weights that lie there now, or None; never waits."""


class IntrinsicReward:
    """Of policy `name`, by the auxiliary of `plan`. Its weights come by `adopt`, which is given once it is known how
    large they are."""

    def __init__(
        self, name: str, plan: AuxiliaryPlan, coefficient: float, device: torch.device, counters: Counters
    ) -> None:
        self._name, self._coefficient, self._counters = name, coefficient, counters
        self._networks = build(plan.interface, plan.config, 0).to(device)
        self._weights = flatten_(self._networks)
        self._spare = np.empty(self._weights.nbytes, np.uint8)
        self._adopted_at = time.monotonic()
        self._has_seen = False
        """Whether the weights are of networks that have learned from anything."""
        self.version = NOTHING
        self.adopt: Adopt = _nothing
        self.measured: dict[str, float] = {}
        """Of the last batch (launch/docs/reference/measures.md)."""

    @property
    def manifest(self) -> Manifest:
        """Names, dtypes, shapes and places of the weights."""
        return self._weights.manifest

    def add_bonus(self, batch: SegmentBatch) -> SegmentBatch:
        """`batch` with the bonus in its rewards, by the newest weights there are."""
        self._sync()
        bonus = novelty(self._networks.bonus, batch)
        row = torch.arange(bonus.shape[1], device=bonus.device)
        given = torch.where(row < batch.valid[:, None], batch.reward, 0.0)
        sums = torch.stack([batch.valid.sum(), given.sum(), bonus.sum(), bonus.max()]).tolist()
        rows = max(1, int(sums[0]))
        if not self._has_seen:
            self._counters.add(f"rows_without_bonus.{self._name}", int(sums[0]))
        self.measured = {
            "reward_mean": sums[1] / rows,  # as the world gave it
            "intrinsic_mean": sums[2] / rows,
            "intrinsic_max": sums[3],
            "intrinsic_version": float(self.version.version),
            "intrinsic_age": time.monotonic() - self._adopted_at,
        }
        return replace(batch, reward=batch.reward + self._coefficient * bonus)

    def _sync(self) -> None:
        version = self.adopt(self._spare, self.version)
        if version is not None:
            self._weights.load(self._spare)
            self._has_seen = bool(self._networks.observations.count > 0)
            self.version, self._adopted_at = version, time.monotonic()


def novelty(bonus: Callable[[Tensor], Tensor], batch: SegmentBatch) -> Tensor:
    """[B, T]: the bonus of what each row's action led to. After a truncation that is the true last observation; what
    was seen after a termination nobody knows, so that it is 0 there, as in rows that are not real."""
    found = bonus(batch.observation[:, 1:])
    segment, entry = (batch.final_row >= 0).nonzero(as_tuple=True)
    if len(segment):
        found[segment, batch.final_row[segment, entry]] = bonus(batch.final_observation[segment, entry])
    row = torch.arange(found.shape[1], device=found.device)
    real = (row < batch.valid[:, None]) & ~batch.terminated
    return torch.where(real, found, 0.0)


def _nothing(_out: NDArray[np.uint8], _have: Version) -> None:
    return None
