"""What a batch looks like in numbers: the measurements that a learner logs of its data
(launch/docs/reference/measures.md lists them).

In flow: a batch of either mode. Out flow: `<field>_<measure>` of its real rows. Nothing is changed.
Legend: `n` rows looked at, `H` heads, `P` numbers that only learners see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.algorithms.common.batches import Learnable, ObservationBatch, TransitionBatch
from workers.policies.interface import Interface

_MOST_ROWS, _MOST_NUMBERS = 4_096, 2**24
"""Rows that are looked at, and numbers of their observations, of four bytes each; of a larger batch as many rows at
equal distances."""
_MOST_SHARES = 64
"""Choices of a head up to which the share of each is told."""
_SCALARS = ("reward", "log_probability", "value", "discount", "weight")


@dataclass(frozen=True, slots=True)
class Sample:
    """Real rows of a batch, in host memory."""

    observation: Tensor
    """[n, numbers] float32"""
    action: Tensor
    """[n, H] int64; no heads where actions are amounts alone"""
    amount: Tensor
    """[n, D] float32"""
    privileged: Tensor
    """[n, P] float32; no columns where only acting policies see"""
    free: Tensor
    """[n] bool: whether more than one choice was legal; True where that is not known"""
    scalars: dict[str, Tensor]
    """[n] each, float32"""
    flags: dict[str, Tensor]
    """[n] bool each"""
    real: float
    """Share of the batch's rows that are real."""

    @property
    def rows(self) -> int:
        """n."""
        return len(self.observation)


def sample(batch: Learnable, interface: Interface) -> Sample:
    """Real rows of `batch`, at most 4,096, and of wide observations fewer."""
    width = sum(math.prod(leaf.space.shape) for leaf in interface.place.observed.leaves)
    keep, real = _real(batch, min(_MOST_ROWS, max(2, _MOST_NUMBERS // max(1, width))))
    count = len(keep)

    def rows(column: Tensor) -> Tensor:
        if not isinstance(batch, TransitionBatch):
            column = column[:, : batch.observation.shape[1] - 1].flatten(0, 1)
        return column.index_select(0, keep).cpu()

    def seen(observation: Tensor) -> Tensor:
        return torch.from_numpy(interface.observation_encoding.numbers(observation.numpy()))

    if isinstance(batch, ObservationBatch):
        nothing, free = torch.empty(count, 0), torch.zeros(count, dtype=torch.bool)
        return Sample(seen(rows(batch.observation)), nothing.long(), nothing, nothing, free, {}, {}, real)

    present = {name: getattr(batch, name, None) for name in (*_SCALARS, "terminated", "truncated")}
    columns = {name: rows(column) for name, column in present.items() if column is not None}
    heads = len(interface.action_encoding.head_sizes)
    amounts = interface.action_encoding.continuous
    amount, legal, privileged = (getattr(batch, name, None) for name in ("amount", "legal", "privileged"))
    # of replayed rows only what was legal later is known
    known = torch.full((count,), not (interface.action_encoding.masked and legal is None))
    return Sample(
        seen(rows(batch.observation)),
        rows(batch.action).reshape(count, heads) if heads else torch.empty(count, 0, dtype=torch.int64),
        torch.empty(count, 0) if amount is None else rows(amount).reshape(count, amounts),
        torch.empty(count, 0) if privileged is None else rows(privileged),
        known if legal is None else rows(legal).sum(1) > heads,
        {name: column.float() for name, column in columns.items() if name in _SCALARS},
        {name: column for name, column in columns.items() if name not in _SCALARS},
        real,
    )


def _real(batch: Learnable, most: int) -> tuple[Tensor, float]:
    """The places of at most so many real rows to look at, and the share of the batch's rows that are real."""
    if not isinstance(batch, TransitionBatch):
        segments, length = batch.observation.shape[0], batch.observation.shape[1] - 1
        row = torch.arange(length, device=batch.valid.device)
        places = (row < batch.valid[:, None]).flatten().nonzero()[:, 0]
        total = segments * length
    else:
        total = len(batch.action)
        places = torch.arange(total, device=batch.action.device)
    return places[:: max(1, math.ceil(len(places) / most))], len(places) / max(1, total)


def statistics(seen: Sample, interface: Interface) -> dict[str, float]:
    """All measurements of `seen`; those that are not finite are left out."""
    found: dict[str, float] = {}
    if not seen.rows:
        return found
    found |= _moments("observation", seen.observation)
    found["observation_distinct"] = distinct_rows(seen.observation)
    same = seen.observation.amin(0) == seen.observation.amax(0)
    found["observation_constant"] = float(same.float().mean())
    if seen.privileged.shape[1]:
        found |= _moments("privileged", seen.privileged)
        same = seen.privileged.amin(0) == seen.privileged.amax(0)
        found["privileged_constant"] = float(same.float().mean())
    for name, column in seen.scalars.items():
        found |= _moments(name, column)
    if "reward" in seen.scalars:
        found["reward_distinct"] = float(len(seen.scalars["reward"].unique()))
    for head, size in enumerate(interface.action_encoding.head_sizes if seen.action.shape[1] else ()):
        prefix = "action" if interface.action_encoding.single else f"action_{head}"
        counts = torch.bincount(seen.action[:, head].clamp(0, size - 1), minlength=size).float()
        found[f"{prefix}_distinct"] = float((counts > 0).sum())
        if size <= _MOST_SHARES:
            found |= {f"{prefix}_share_{choice}": float(one) / seen.rows for choice, one in enumerate(counts)}
    if seen.amount.shape[1]:
        found |= _moments("amount", seen.amount)
    for name, flag in seen.flags.items():
        found[f"{name}_share"] = float(flag.float().mean())
    found["real_share"] = seen.real
    return {name: value for name, value in found.items() if math.isfinite(value)}


def distinct_rows(rows: Tensor) -> float:
    """How many of rows [n, numbers] differ, as told by one projection of each."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.rand(rows.shape[1], generator=generator, dtype=torch.float64)
    return float(len((rows.double() @ direction).unique()))


def _moments(name: str, column: Tensor) -> dict[str, float]:
    if not column.numel():
        return {}
    numbers = torch.stack([column.min(), column.max(), column.mean(), column.std(correction=0)]).tolist()
    return dict(zip((f"{name}_min", f"{name}_max", f"{name}_mean", f"{name}_std"), numbers, strict=True))
