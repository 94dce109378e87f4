"""Attention over the newest rows of an episode: what is remembered is what was seen, and nothing is compressed.

Legend: `T` steps, `B` streams, `F` features, `W` rows that are remembered, `L = W + T`, `H` heads, `D` features of one.
Each step asks all L rows, and what is beyond its window or its episode is masked: many times as fast as W + 1 rows for
each step, of which all would be copied.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Each row asks itself and those up to `window` before it, by what they are and by how long ago they were (Vaswani
    et al. 2017, with the relative positions of Shaw et al. 2018)."""

    def __init__(self, inputs: int, size: int = 128, heads: int = 4, window: int = 16) -> None:
        super().__init__()
        self.inputs, self.features, self.heads, self.window = inputs, size, heads, window
        self.asked, self.answers = nn.Linear(inputs, size), nn.Linear(inputs, 2 * size)
        self.places = nn.Parameter(0.02 * torch.randn(heads, window + 1, size // heads))
        self.last = nn.Linear(size, size)

    def initial_state(self, rows: int) -> dict[str, Tensor]:
        """Nothing is there."""
        past = self.places.new_zeros(rows, self.window, self.inputs)
        return {"past": past, "there": torch.zeros(past.shape[:2], dtype=torch.bool, device=past.device)}

    def forward(self, features: Tensor, state: dict[str, Tensor], first: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """[T, B, F] -> [T, B, H * D], and the state."""
        steps, rows, _ = features.shape
        known = torch.cat([state["past"].transpose(0, 1), features])  # [L, B, F]
        episode = first.cumsum(0)
        before = torch.where(state["there"].T, 0, -1)
        episodes = torch.cat([before, episode])  # [L, B]
        place = torch.arange(len(known), device=first.device) - torch.arange(steps, device=first.device)[:, None]
        near = (place >= 0) & (place <= self.window)  # [T, L]
        visible = near & (episodes.T[:, None] == episode.T[..., None])  # [B, T, L]
        asked = self.asked(features).view(steps, rows, self.heads, -1).permute(1, 2, 0, 3)  # [B, H, T, D]
        answers = self.answers(known).view(len(known), rows, 2, self.heads, -1)
        keys, values = answers.permute(2, 1, 3, 0, 4)  # [B, H, L, D] each
        where = place.clamp(0, self.window).expand(rows, self.heads, -1, -1)
        scores = asked @ keys.mT + (asked @ self.places.mT).gather(3, where)
        scores = (scores * asked.shape[-1] ** -0.5).masked_fill(~visible[:, None], -torch.inf)
        found = (scores.softmax(-1) @ values).permute(2, 0, 1, 3)
        past, there = known[steps:].transpose(0, 1), (episodes[steps:] == episode[-1]).T
        return self.last(found.flatten(2)), {"past": past * there[..., None], "there": there}
