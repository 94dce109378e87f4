"""How much of what rows earned their values told beforehand. Pure.

In flow: segments with the values that were told when their rows were made. Out flow: the explained variance.
"""

from __future__ import annotations

import torch

from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.returns import linear_recurrence


def explained_variance(batch: SegmentBatch, gamma: float) -> float | None:
    """1 - Var[return - value] / Var[return] over real rows: 1 of a critic that knows all, 0 of one that says always the
    same, less of one that misleads. Returns are discounted sums to the end of the episode or, at `value` of the last
    row, of the segment. None where no values were told, or all rows earned the same."""
    if batch.value is None:
        return None
    row = torch.arange(batch.reward.shape[1], device=batch.valid.device)
    real, last = row < batch.valid[:, None], row == batch.valid[:, None] - 1
    over = batch.terminated | batch.truncated
    cut = last & ~over  # what follows is not in the segment: its value stands for it, which explains nothing
    cut_off = batch.truncated & ~batch.terminated
    earned = torch.where(cut, batch.value, batch.reward + gamma * batch.value * cut_off).masked_fill(~real, 0.0)
    follows = gamma * (real & ~over & ~last).float()
    returns = linear_recurrence(earned.T, follows.T).T[real & ~cut]
    if len(returns) < 2 or returns.amin() == returns.amax():
        return None
    error = returns - batch.value[real & ~cut]
    return 1 - float(error.var() / returns.var())
