"""Text and other rows of tokens: embeddings of each and of its place, then attention among them or a GRU over them."""

from __future__ import annotations

from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from workers.policies.encoders.observation_spec import LeafSpec, ObservationSpec

_MOST = 65_536
"""Values of a token."""


class Tokens(nn.Module):
    """One leaf of choices, text or whole numbers: [N, *shape] -> [N, features]. 0 is no token where it is no choice."""

    def __init__(self, observation: ObservationSpec, size: int, features: int, by: Literal["attention", "gru"]) -> None:
        super().__init__()
        found, self.features = token_range(observation.leaf), features
        assert found is not None
        least, after = found
        self.least = min(least, 0)
        """What is looked up as 0."""
        self.padded = least > 0
        length = prod(observation.shape)
        self.values, self.places = nn.Embedding(after - self.least, size), nn.Parameter(torch.zeros(length, size))
        self.recurrent = nn.GRU(size, size, batch_first=True) if by == "gru" else None
        self.mixed = None if by == "gru" else nn.Linear(size, 3 * size)
        self.last = nn.Linear(size, features)

    def forward(self, observation: Tensor) -> Tensor:
        """[N, features] float32."""
        # what is outside its space is no reason to end: it is read as the nearest value
        tokens = observation.reshape(-1, len(self.places)).long() - self.least
        tokens = tokens.clamp(0, self.values.num_embeddings - 1)
        there = (tokens != 0) if self.padded else torch.ones_like(tokens, dtype=torch.bool)
        x = self.values(tokens) + self.places
        if self.recurrent is not None:
            states, _ = self.recurrent(x)
            end = (there.sum(1) - 1).clamp(min=0)
            x = states.gather(1, end[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]
            return self.last(x * there.any(1)[:, None]).relu()
        assert self.mixed is not None
        query, key, value = self.mixed(x).chunk(3, -1)
        scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~there[:, None], -1e9)
        x = x + scores.softmax(-1) @ value
        weight = there / there.sum(1, keepdim=True).clamp(min=1)
        return self.last((x * weight[..., None]).sum(1)).relu()


def token_range(leaf: LeafSpec) -> tuple[int, int] | None:
    """The least value of an element, and one more than the greatest; None where elements are no tokens."""
    if leaf.choices:
        least, after = min(first for first, _ in leaf.choices), leaf.n or 0
    elif leaf.dtype.is_floating_point or leaf.low is None or leaf.high is None:
        return None
    else:
        least, after = int(leaf.low), int(leaf.high) + 1
    return (least, after) if after - min(least, 0) <= _MOST else None
