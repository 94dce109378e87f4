"""Numbers of the host that a device is given before an update, in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class HostScalars:
    """`rows` numbers for each of `many` policies."""

    def __init__(self, rows: int, many: int, device: torch.device) -> None:
        self._here = torch.zeros(rows, many, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._there = torch.zeros(rows, many, dtype=torch.float64, device=device)

    def upload(self, *rows: Sequence[float]) -> Tensor:
        """[rows, many] float64 on the device, which must be done with what it was given before."""
        self._here.copy_(torch.tensor(rows, dtype=torch.float64))
        return self._there.copy_(self._here, non_blocking=True)
