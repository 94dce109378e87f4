"""A perceptron policy that acts in host memory by numpy alone: the bits of `ActorCritic.act`, at a quarter of its price
where rows are few, because what a small batch costs is calls, and torch's cost more than numpy's.

In flow: observations. Out flows: actions with their log-probabilities and values.

Legend: `B` rows acted on, `I` inputs, `H` units of a hidden layer, `A` outputs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import nn

from workers.policies.actor_critic import ActorCritic
from workers.policies.distributions import Noise, draw
from workers.policies.networks import CLIP, STD_FLOOR

__all__ = ["HostActor", "host_actor"]

Array = NDArray[np.float32]


def host_actor(module: nn.Module) -> HostActor | None:
    """What acts in the place of `module`, if that is a feed-forward `ActorCritic` in host memory."""
    if not isinstance(module, ActorCritic) or module.core is not None or module.value_weight.device.type != "cpu":
        return None
    return HostActor(module)


class HostActor:
    """`module`, whose weights it sees as they are: they must stay where they lie (`flatten_`)."""

    def __init__(self, module: ActorCritic) -> None:
        self._heads, self._relu = module.heads, module.activation == "relu"
        self._features = module.features
        arrays = [tensor.detach().numpy() for tensor in module.tower_parameters()]
        self._first, self._deeper, self._top = arrays[:-4][:2], arrays[:-4][2:], arrays[-4:]
        self._log_std = None if module.log_std is None else module.log_std.detach().numpy()
        self._moments = None
        if module.observations is not None:
            self._moments = (module.observations.mean.numpy(), module.observations.variance.numpy())
            self._seen_floor = module.observations.floor
        self._returns, self._floor = (
            (module.returns.mean.numpy(), module.returns.variance.numpy()),
            module.returns.floor,
        )
        self._held: list[Array] = []
        """Memory of the inputs and of each layer, of as many rows as there ever were."""

    def act(
        self, observation: NDArray, noise: Noise, greedy: bool = False, legal: NDArray[np.bool_] | None = None
    ) -> dict[str, NDArray]:
        """As `ActorCritic.act`, of and with arrays."""
        policy, policy_bias, value, value_bias = self._top
        layers = self._hidden(self._inputs(observation.reshape(-1, self._features)))
        logits = np.empty((policy.shape[1], len(observation)), np.float32)
        np.matmul(policy.T, layers[0].T, out=logits)
        logits += policy_bias[:, None]
        values = np.matmul(layers[1], value)
        values += value_bias
        mean, variance = self._returns[0].item(), self._returns[1].item()
        values *= max(math.sqrt(variance), self._floor * abs(mean), STD_FLOOR)
        values += mean
        return {**draw(logits, self._heads, self._log_std, None if greedy else noise, legal), "value": values[:, 0]}

    def _inputs(self, rows: NDArray) -> Array:
        """[B, I] float32, normalised where the policy does that."""
        if self._moments is None and rows.dtype == np.float32:
            return rows
        x = self._space(0, len(rows), self._features)
        np.copyto(x, rows, casting="unsafe")
        if self._moments is None:
            return x
        mean, variance = self._moments
        std = np.maximum(np.maximum(np.sqrt(variance), np.abs(mean) * self._seen_floor), STD_FLOOR)
        np.subtract(x, mean, out=x, casting="same_kind")
        np.divide(x, std, out=x, casting="same_kind")
        np.clip(x, -CLIP, CLIP, out=x)
        return x

    def _hidden(self, x: Array) -> Array:
        """[2, B, H]: the last hidden layer of policy and value; the input itself, twice, if there is none."""
        if not self._first:
            return np.broadcast_to(x, (2, *x.shape))
        rows, (weight, bias) = len(x), self._first
        both = np.matmul(x, weight, out=self._space(1, rows, weight.shape[1]))
        both += bias
        layer = self._activate(both).reshape(rows, 2, -1).transpose(1, 0, 2)
        for number, (weight, bias) in enumerate(zip(self._deeper[::2], self._deeper[1::2], strict=True), 2):
            width = weight.shape[2]
            z = np.matmul(layer, weight, out=self._space(number, rows, 2 * width).reshape(2, rows, width))
            z += bias
            layer = self._activate(z)
        return layer

    def _activate(self, x: Array) -> Array:
        return np.maximum(x, 0, out=x) if self._relu else np.tanh(x, out=x)

    def _space(self, number: int, rows: int, width: int) -> Array:
        """[rows, width], without content, in memory that is used again."""
        while number >= len(self._held):
            self._held.append(np.empty(0, np.float32))
        held = self._held[number]
        if len(held) < rows * width:
            held = self._held[number] = np.empty(rows * width, np.float32)
        return held[: rows * width].reshape(rows, width)
