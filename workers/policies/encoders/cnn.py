"""Convolutions over an image: those of Mnih et al. (2015) where it is large, two small ones where it is not; and the
residual network of IMPALA (Espeholt et al. 2018, figure 3, right)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from workers.policies.encoders.observation_spec import ObservationSpec
from workers.policies.networks.layers import HIDDEN_GAIN

LARGE = 64
"""Pixels of the shorter side from which on an image is large."""
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, side of the kernel and stride of each convolution (extended data table 1)."""


class CNN(nn.Module):
    """One image: [N, *shape] -> [N, features]; 512 by default of a large one, 128 of a small one."""

    def __init__(self, observation: ObservationSpec, features: int | None = None, scale: float | None = None) -> None:
        super().__init__()
        self.leaf = observation.leaf
        self.scale = scale or self.leaf.scale
        channels, sides = self.leaf.channels, list(self.leaf.sides)
        large = min(sides) >= LARGE
        layers: list[nn.Module] = []
        # what is small keeps its border in the first one
        for units, kernel, stride in _NATURE if large else ((16, 3, 1), (32, 3, 1)):
            padding = 1 if not large and not layers else 0
            layers += [nn.Conv2d(channels, units, kernel, stride, padding), nn.ReLU()]
            channels, sides = units, [(side + 2 * padding - kernel) // stride + 1 for side in sides]
        self.features = features or (512 if large else 128)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * prod(sides), self.features), nn.ReLU())
        orthogonal_layers(self)

    def forward(self, observation: Tensor) -> Tensor:
        """[N, features] float32."""
        x = self.layers(self.leaf.image(observation, self.scale))
        assert isinstance(x, Tensor)
        return x


def orthogonal_layers(module: nn.Module) -> None:
    """Initial weights of all layers of `module` for rectified units, as CleanRL's `layer_init`."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, HIDDEN_GAIN)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


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
