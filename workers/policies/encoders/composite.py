"""Several encoders side by side, each for a part of what is seen."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from workers.policies.encoders.observation_spec import ObservationSpec


class Composite(nn.Module):
    """What each of `encoders` gives of its leaves, joined: [N, the sum of their features]."""

    def __init__(self, encoders: Mapping[tuple[str, ...], nn.Module], observation: ObservationSpec) -> None:
        super().__init__()
        self.parts, self.encoders = [observation.part(*paths) for paths in encoders], nn.ModuleList(encoders.values())
        self.features: int = sum(one.features for one in encoders.values())  # type: ignore[misc] # numbers

    def reading(self, path: str) -> nn.Module:
        """The encoder of that leaf."""
        return next(one for part, one in zip(self.parts, self.encoders, strict=True) if path in part)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """[N, features]."""
        pairs = zip(self.parts, self.encoders, strict=True)
        return torch.cat([encoder(part.given(observation)) for part, encoder in pairs], 1)
