"""The residual network of IMPALA (Espeholt et al. 2018, figure 3, right)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from workers.policies.encoders.cnn import orthogonal_layers
from workers.policies.encoders.observation_spec import ObservationSpec


class _Block(nn.Module):
    """x + two convolutions of 3x3 of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.layers = nn.Sequential(*(part for one in convolutions for part in (nn.ReLU(), one)))

    def forward(self, x: Tensor) -> Tensor:
        found = x + self.layers(x)
        assert isinstance(found, Tensor)
        return found


class Residual(nn.Module):
    """One image: [N, *shape] -> [N, features]."""

    def __init__(
        self, observation: ObservationSpec, channels: Sequence[int], features: int, scale: float | None = None
    ) -> None:
        super().__init__()
        self.leaf, self.features = observation.leaf, features
        self.scale = scale or self.leaf.scale
        layers: list[nn.Module] = []
        before, sides = self.leaf.channels, list(self.leaf.sides)
        for units in channels:
            layers += [nn.Conv2d(before, units, 3, padding=1), nn.MaxPool2d(3, 2, 1), _Block(units), _Block(units)]
            before, sides = units, [(side + 1) // 2 for side in sides]
        last = nn.Linear(before * prod(sides), features)
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), last, nn.ReLU())
        orthogonal_layers(self)

    def forward(self, observation: Tensor) -> Tensor:
        """[N, features] float32."""
        x = self.layers(self.leaf.image(observation, self.scale))
        assert isinstance(x, Tensor)
        return x
