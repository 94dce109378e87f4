"""The network of W5's small pictures, for peers that have none: ours for observations below 64 pixels."""

from __future__ import annotations

from torch import nn

__all__ = ["FEATURES", "small_network"]

FEATURES = 128


def small_network() -> nn.Sequential:
    """Pictures [B, 4, 10, 10] from 0 to 1 -> [B, FEATURES]."""
    seen = nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()
    return nn.Sequential(*seen, nn.Flatten(), nn.Linear(32 * 8 * 8, FEATURES), nn.ReLU())
