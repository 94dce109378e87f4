"""Random network distillation: a random network that never changes, another that learns to say the same, and the units
of both ends. Where the second is far from the first, nobody has been.

In flow: observations. Out flows: how far apart the two are (acting on nothing, for nobody), with gradients or without.
Legend: `N` rows, `I` elements of an observation, `F` features.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from workers.policies.networks.layers import HIDDEN_GAIN, Perceptron, RowEncoder, flatten_inputs, orthogonal_layer
from workers.policies.networks.normalization import RunningMoments
from workers.policies.tensors.kernels import Activation, to_float32

CLIP = 5.0
"""Normalised observations beyond this are cut (Burda et al. 2018, section 2.4)."""


class RNDNetworks(nn.Module):
    """Target and predictor of `features` numbers, with the moments of observations and of intrinsic returns."""

    def __init__(
        self,
        shape: Sequence[int],
        features: int,
        hidden: Sequence[int],
        activation: Activation,
        encoder: RowEncoder | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.encoder = tuple(shape), encoder
        """`encoder`: makes numbers of what is seen, where that is more than one box."""
        inputs = prod(shape) if encoder is None else encoder.features
        self.target = _network(inputs, hidden, activation, features)
        self.target.requires_grad_(False)
        # a layer more than what it learns from, so that it can (as the authors' own)
        self.predictor = _network(inputs, [*hidden, *hidden[-1:]], activation, features)
        self.observations = RunningMoments(inputs)
        self.returns = RunningMoments()

    def numbers(self, observation: Tensor) -> Tensor:
        """[..., *shape] -> [N, I] float32."""
        if self.encoder is None:
            return flatten_inputs(observation, self.shape)
        found = self.encoder(observation.reshape(-1, *self.shape))
        assert isinstance(found, Tensor)
        return found

    def inputs(self, observation: Tensor) -> Tensor:
        """[..., *shape] -> [N, I] float32, normalised by all that was seen and cut at +-5."""
        rows = self.numbers(observation)
        moments = self.observations
        return ((rows - moments.mean.float()) / moments.std.float()).clamp(-CLIP, CLIP)

    def forward(self, x: Tensor) -> Tensor:
        """`inputs(...)` [N, I] -> [N]: mean squared difference of the two networks' features."""
        return (to_float32(self.predictor(x)) - to_float32(self.target(x))).square().mean(-1)

    @torch.no_grad()
    def bonus(self, observation: Tensor) -> Tensor:
        """[..., *shape] -> [...] float32: how new each is, in units of the spread of intrinsic returns; 0 as long as
        nothing was seen."""
        lead = observation.shape[: observation.dim() - len(self.shape)]
        bonus = self(self.inputs(observation)) / self.returns.std.float()
        return (bonus * (self.observations.count > 0)).view(lead)


def _network(inputs: int, hidden: Sequence[int], activation: Activation, features: int) -> nn.Sequential:
    perceptron = Perceptron(inputs, hidden, activation)
    return nn.Sequential(perceptron, orthogonal_layer(nn.Linear(perceptron.outputs, features), HIDDEN_GAIN))
