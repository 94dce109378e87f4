"""How fast a batch reaches the device, beside the bandwidth of a bare pinned copy in the same run.

Out flow: `host_to_device.share`: bytes a second of a staged batch over those of one large pinned copy;
`host_to_device.gib_per_second` of that copy.
"""

from __future__ import annotations

import torch

from workers.bench.clock import medians

__all__ = ["staging"]

_FIELDS = 11
"""Tensors of a batch: one of observations, which is nearly all of it, and small ones."""


def staging(mebibytes: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Of so many MiB."""
    pinned = device.type == "cuda"
    numbers = mebibytes << 18

    def host(count: int) -> torch.Tensor:
        memory = torch.empty(count)
        return memory.pin_memory() if pinned else memory

    whole, there = host(numbers), torch.empty(numbers, device=device)
    batch = [host(numbers * 9 // 10), *(host(numbers // 10 // (_FIELDS - 1)) for _ in range(_FIELDS - 1))]
    size = sum(len(part) for part in batch)

    def staged() -> list[torch.Tensor]:
        if not pinned:
            return [part.clone() for part in batch]
        return [part.to(device, non_blocking=True) for part in batch]

    taken = medians({"bare": lambda: there.copy_(whole, non_blocking=True), "ours": staged}, rounds, device)
    return {
        "host_to_device.share": (size / taken["ours"]) / (numbers / taken["bare"]),
        "host_to_device.gib_per_second": 4 * numbers / taken["bare"] / 2**30,
    }
