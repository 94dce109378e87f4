"""Whether weights and batches are finite. Pure.

In flows: a module, or a batch of either mode. Out flow: yes or no, or which fields and items are not.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor, nn

from workers.algorithms.common.batches import Learnable, TransitionBatch
from workers.policies.tensors.flat_weights import flatten_

_SEEN = ("observation", "privileged")
"""What is there after the last row, too."""


class FiniteWeights:
    """Whether all weights of `module`, which must be flat and stay where it is, are finite: one sum of the parameters,
    one of each buffer."""

    def __init__(self, module: nn.Module) -> None:
        rest = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point() and not t.requires_grad]
        self._parts = [flatten_(module).parameters, *rest]

    @torch.no_grad()
    def __call__(self) -> bool:
        """True if they are, by a sum of each part: one number that is not finite makes it so."""
        return bool(torch.stack([part.sum(dtype=torch.float32) for part in self._parts]).isfinite().all())


def not_finite(batch: Learnable) -> list[str]:
    """Names of the fields of `batch` with a number that is not finite in a row that is real."""
    return [name for name, rows in non_finite_items(batch).items() if bool(rows.any())]


def non_finite_items(batch: Learnable) -> dict[str, Tensor]:
    """Of each field of floats: [B], whether a segment or transition has a number there that is not finite."""
    found = {}
    for field in fields(batch):
        column = getattr(batch, field.name)
        if column is None or not column.is_floating_point() or field.name == "history":
            continue  # `observation` is its part that is real
        bad = ~column.isfinite()
        if not isinstance(batch, TransitionBatch) and field.name != "state":
            row = torch.arange(column.shape[1], device=column.device)
            shown = batch.valid + (batch.valid > 0) if field.name in _SEEN else batch.valid
            real = batch.final_row >= 0 if field.name.startswith("final_") else row < shown[:, None]
            bad &= real.view(*real.shape, *[1] * (column.dim() - 2))
        found[field.name] = bad.flatten(1).any(1) if bad.dim() > 1 else bad
    return found
