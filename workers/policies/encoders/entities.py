"""A set of entities, each a row of numbers: what is seen of each, and what several questions find among all of them.
Their order makes no difference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workers.policies.encoders.observation_spec import ObservationSpec


class Entities(nn.Module):
    """One leaf of numbers, a row an entity: [N, most, D] -> [N, features]. A row of zeros is nobody. Pooling by
    attention with learned queries is that of Lee et al. (2019, section 3.2) with one seed a head."""

    def __init__(self, observation: ObservationSpec, size: int, heads: int, features: int) -> None:
        super().__init__()
        self.features = features
        self.each = nn.Sequential(nn.Linear(observation.shape[1], size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())
        self.queries = nn.Linear(size, heads, bias=False)
        self.last = nn.Linear(heads * size, features)

    def forward(self, observation: Tensor) -> Tensor:
        """[N, features] float32."""
        rows = observation.float()
        there = (rows != 0).any(-1)
        x = self.each(rows)
        scores = self.queries(x).masked_fill(~there[..., None], -torch.inf)
        # rows without anybody have no weights at all
        weight = scores.softmax(1).nan_to_num() * there[..., None]
        return self.last((weight.mT @ x).flatten(1)).relu()
