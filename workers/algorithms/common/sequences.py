"""Replayed segments as those see them who remember: rows, and where their returns end (Kapturowski et al. 2019).

In flow: `SequenceBatch`. Out flow: all rows one behind the other, how they hang together, and of those that are trained
on what was done, earned and seen then. They are those behind the `burn_in`, and before it those of episodes that began
within the segment, or with it.

Legend: `T` segment length, `B` segments, `k` true last observations, `N = (T + 1) * B + k` rows, `C` choices, `n` rows
trained on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.off_policy import ValueBased
from workers.algorithms.common.batches import SequenceBatch
from workers.policies.networks.recurrent_context import RecurrentContext


class Sequences(NamedTuple):
    """Rows in the order of `Core.unroll`, and returns of n steps of some of them."""

    observation: Tensor
    """[N, 1, *shape]: row t of segment i at t * B + i, then the true last observations"""
    recall: RecurrentContext
    """How they hang together"""
    row: Tensor
    """[n]: places of the rows that are trained on"""
    action: Tensor
    """[n], or [n, H]"""
    reward: Tensor
    """[n]: the discounted sum of the rewards up to the bootstrap"""
    discount: Tensor
    """[n]: the factor of its value; 0 after a termination"""
    following: Tensor
    """[n]: the place of what was seen then"""
    next_legal: Tensor | None
    """[n, C]: what was legal then; nobody says what was at a true last observation: what was in the row before it"""


def sequences_of(batch: SequenceBatch, algorithm: ValueBased) -> Sequences:
    """Those of `batch`. A return ends early with the episode, or with the segment's last row."""
    segments, length = batch.reward.shape
    device = batch.reward.device
    time = torch.arange(length, device=device)[:, None].expand(length, segments)
    segment = torch.arange(segments, device=device)
    reward, terminated, truncated = batch.reward.T, batch.terminated.T, batch.truncated.T
    total, discount, last = torch.zeros_like(reward), torch.ones_like(reward), time
    going = time < batch.valid
    for step in range(algorithm.n_step):
        at = (time + step).clamp(max=length - 1)
        going = going & (time + step < batch.valid)
        total = total + torch.where(going, discount * reward.gather(0, at), 0.0)
        discount = torch.where(going, discount * algorithm.discount, discount)
        last = torch.where(going, at, last)
        going = going & ~(terminated | truncated).gather(0, at)
    which, entry = (batch.final_row >= 0).nonzero(as_tuple=True)
    final_place = batch.final_row[which, entry] * segments + which
    after = ((time + 1) * segments + segment).flatten()
    after[final_place] = (length + 1) * segments + torch.arange(len(final_place), device=device)
    cut, row = truncated.gather(0, last), _trained(batch, algorithm.burn_in)
    masked = (torch.where(cut, last, last + 1) * segments + segment).flatten()[row]
    seen = torch.cat([_by_time(batch.observation), batch.final_observation[which, entry]])
    return Sequences(
        seen[:, None],
        RecurrentContext(batch.state, terminated | truncated, final_place),
        row,
        _by_time(batch.action)[row],
        total.flatten()[row],
        torch.where(terminated.gather(0, last), 0.0, discount).flatten()[row],
        after.view(length, segments).gather(0, last).flatten()[row],
        None if batch.legal is None else _by_time(batch.legal)[masked],
    )


def _by_time(column: Tensor) -> Tensor:
    """[B, R, ...] -> [R * B, ...]"""
    return column.transpose(0, 1).flatten(0, 1)


def _trained(batch: SequenceBatch, burn_in: int) -> Tensor:
    """[n]: places of the rows that are trained on; of all real ones, where a burn-in leaves none."""
    row = torch.arange(batch.reward.shape[1], device=batch.valid.device)
    real = row < batch.valid[:, None]
    ended = (batch.terminated | batch.truncated).cumsum(1).roll(1, 1)
    ended[:, 0] = 0
    begun = (ended > 0) | (batch.state == 0).all(1, keepdim=True)
    chosen = real & (begun | (row >= burn_in))
    found = _by_time(chosen).nonzero()[:, 0]
    return found if len(found) else _by_time(real).nonzero()[:, 0]
