"""Attention over the newest rows of an episode: what is remembered is what was seen, and nothing is compressed.

Legend: `T` steps, `B` streams, `F` features, `W` rows that are remembered, `L = W + T`, `H` heads, `D` features of one.
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
        visible = episodes.unfold(0, self.window + 1, 1) == episode[..., None]  # [T, B, W + 1]
        asked = self.asked(features).view(steps, rows, self.heads, -1)
        answers = self.answers(known).view(self.window + steps, rows, 2, self.heads, -1)
        keys, values = answers.unfold(0, self.window + 1, 1).unbind(2)  # [T, B, H, D, W + 1]
        scores = torch.einsum("tbhd,tbhdw->tbhw", asked, keys) + torch.einsum("tbhd,hwd->tbhw", asked, self.places)
        scores = (scores * asked.shape[-1] ** -0.5).masked_fill(~visible[:, :, None], -torch.inf)
        found = torch.einsum("tbhw,tbhdw->tbhd", scores.softmax(-1), values)
        past, there = known[steps:].transpose(0, 1), (episodes[steps:] == episode[-1]).T
        return self.last(found.flatten(2)), {"past": past * there[..., None], "there": there}
