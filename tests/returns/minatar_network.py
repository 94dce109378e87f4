"""The network of MinAtar's DQN (Young & Tian 2019): 16 filters of 3x3, then 128 units."""

from __future__ import annotations

from torch import Tensor, nn

from rookery import ObservationSpec


class MinAtarNetwork(nn.Module):
    """An image of bits, channels last: [N, height, width, channels] -> [N, 128]."""

    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__()
        height, width, channels = observation.shape
        self.features = 128
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(16 * (height - 2) * (width - 2), self.features), nn.ReLU()),
        )

    def forward(self, observation: Tensor) -> Tensor:
        """[N, 128]."""
        found = self.layers(observation.permute(0, 3, 1, 2).float())
        assert isinstance(found, Tensor)
        return found
