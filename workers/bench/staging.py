"""How fast a batch reaches the device, beside the bandwidth of a bare pinned copy in the same run.

Out flow: `host_to_device.share`: bytes a second of a batch that a learner's carrier brings over those of one large
pinned copy;
`host_to_device.gib_per_second` of that copy.
"""

from __future__ import annotations

import torch

from workers.bench.clock import medians
from workers.learning.carrier import Carrier

__all__ = ["staging"]

_FIELDS = 11
"""Tensors of a batch: one of observations, which is nearly all of it, and small ones."""


def staging(mebibytes: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Of so many MiB."""
    carrier = Carrier(device)
    numbers = mebibytes << 18
    whole, there = carrier.memory(torch.empty(numbers)), torch.empty(numbers, device=device)
    parts = [numbers * 9 // 10, *[numbers // 10 // (_FIELDS - 1)] * (_FIELDS - 1)]
    batch = {str(number): carrier.memory(torch.empty(part)) for number, part in enumerate(parts)}
    size = sum(parts)

    def staged() -> object:
        if not carrier.beside:
            return [part.clone() for part in batch.values()]  # there is nowhere to go
        sent = carrier.send(batch)
        carrier.arrive(sent)
        return sent

    taken = medians({"bare": lambda: there.copy_(whole, non_blocking=True), "ours": staged}, rounds, device)
    return {
        "host_to_device.share": (size / taken["ours"]) / (numbers / taken["bare"]),
        "host_to_device.gib_per_second": 4 * numbers / taken["bare"] / 2**30,
    }
