"""A policy with a value that acts in host memory by numpy alone: the bits of `ActorCritic.act` (of a recurrent one to
within the order of sums), at a quarter of its price where rows are few, because what a small batch costs is calls, and
torch's cost more than numpy's. What an encoder reads, or a whole network of the user's own, torch computes; all behind
it is numpy's.

In flow: observations, and states where the policy is recurrent. Out flows: actions with their log-probabilities,
values, and states after them.

Legend: `B` rows acted on, `I` inputs, `F` of them elements of an observation, the rest features of a memory, `S` towers
(actor_critic_mlp.py), `H` units of a hidden layer, `A` outputs; of a memory `n` streams, `U` units, `S` numbers of a
state, `G` numbers of all gates (4U, or 3U of a GRU).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.networks.actor_critic import ActorCritic, OwnActorCritic
from workers.policies.networks.normalization import CLIP, STD_FLOOR
from workers.policies.networks.recurrent import RecurrentCore
from workers.policies.tensors.kernels import gru_cell_, lstm_cell_

Array = NDArray[np.float32]

_ROOMS = 256
"""Numbers of rows of which it is remembered where memory lies for them."""


def numpy_actor(module: nn.Module) -> NumpyActor | None:
    """What acts in the place of `module`, if that is an `ActorCritic` in host memory without parts behind its encoder
    that torch alone computes."""
    if not isinstance(module, ActorCritic) or module.value_weight.device.type != "cpu":
        return None
    if module.declared is not None or not isinstance(module.core, RecurrentCore | None):
        return None
    return OwnNumpyActor(module) if isinstance(module, OwnActorCritic) else NumpyActor(module)


class _Buffers(NamedTuple):
    """Memory of one number of rows, without content."""

    inputs: Array
    """[B, I]"""
    both: Array
    """[B, S H]: the first layer as it is formed."""
    layers: list[Array]
    """[S, B, H] each, the first of them the same memory as `both`."""
    below: Array
    """[H, B]: the last layer of the policy."""
    beside: Array
    """[B, H]: of the value."""


class NumpyActor:
    """`module`, whose weights it sees as they are: they must stay where they lie (`flatten_`)."""

    def __init__(self, module: ActorCritic) -> None:
        self._heads, self._relu, self._encoder = module.heads, module.activation == "relu", module.encoder
        self._features, self._towers = module.features, 1 if module.share_layers else 2
        self._core = NumpyRecurrentCore(module.core) if isinstance(module.core, RecurrentCore) else None
        *arrays, self._value, self._value_bias = [tensor.detach().numpy() for tensor in module.tower_parameters()]
        self._first, deeper, last = arrays[:-2][:2], arrays[:-2][2:], arrays[-2:]
        self._deeper = list(zip(deeper[::2], deeper[1::2], strict=True))
        policy, policy_bias = last or (self._value[:, :0], self._value_bias[:0])  # who is whole has none
        self._policy, self._policy_bias = policy.T, policy_bias[:, None]
        self._log_std = None if module.log_std is None else module.log_std.detach().numpy()
        self._moments = None
        if module.observations is not None:
            self._moments = (module.observations.mean.numpy(), module.observations.variance.numpy())
            self._seen_floor = module.observations.floor
        returns = module.returns
        self._returns, self._least = (returns.mean.numpy(), returns.variance.numpy()), (returns.floor, returns.least)
        self._held: list[Array] = []
        """Memory of the inputs and of each layer, of as many rows as there ever were."""
        self._rooms: dict[int, _Buffers] = {}
        """The same by the number of rows, cut to it: to cut it takes as long as to use it."""

    def act(
        self, observation: NDArray, noise: Noise, greedy: bool = False, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """As `ActorCritic.act`, of and with arrays."""
        rows, after = len(observation), {}
        room = self._rooms.get(rows) or self._make_room(rows)
        x = self._inputs(observation, room)
        if self._core is not None:
            assert state is not None
            after = {"state": self._core.step(x, state, room.inputs[:, self._features :])}
            x = room.inputs
        logits, values = self._outputs(x, room)
        mean, variance = self._returns[0].item(), self._returns[1].item()
        floor, least = self._least
        values *= max(math.sqrt(variance), floor * abs(mean), least)
        values += mean
        drawn = self._heads.sample(logits, self._log_std, None if greedy else noise, legal)
        return {**drawn, "value": values[:, 0], **after}

    def _outputs(self, x: Array, room: _Buffers) -> tuple[Array, Array]:
        """[A, B], and normalised values [B, 1]."""
        below, beside = self._hidden(x, room)
        logits = np.empty((len(self._policy), len(x)), np.float32)
        np.matmul(self._policy, below, out=logits)
        logits += self._policy_bias
        values = np.matmul(beside, self._value)
        values += self._value_bias
        return logits, values

    def _inputs(self, observation: NDArray, room: _Buffers) -> Array:
        """[B, F] float32, normalised where the policy does that; where features are put beside them, in their place."""
        if self._encoder is None:
            rows = observation.reshape(-1, self._features)
        else:
            with torch.inference_mode():
                rows = self._encoder(torch.from_numpy(observation)).numpy()
        if self._moments is None and rows.dtype == np.float32 and self._core is None:
            return rows
        x = room.inputs[:, : self._features]
        np.copyto(x, rows, casting="unsafe")
        if self._moments is None:
            return x
        mean, variance = self._moments
        std = np.maximum(np.maximum(np.sqrt(variance), np.abs(mean) * self._seen_floor), STD_FLOOR)
        np.subtract(x, mean, out=x, casting="same_kind")
        np.divide(x, std, out=x, casting="same_kind")
        np.clip(x, -CLIP, CLIP, out=x)
        return x

    def _hidden(self, x: Array, room: _Buffers) -> tuple[Array, Array]:
        """The last hidden layer of the policy, [H, B], and of the value, [B, H]; the input itself if there is none."""
        if not self._first:
            return x.T, x
        weight, bias = self._first
        both = np.matmul(x, weight, out=room.both)
        both += bias
        self._activate(both)
        layer = room.layers[0]
        for (weight, bias), z in zip(self._deeper, room.layers[1:], strict=True):
            np.matmul(layer, weight, out=z)
            z += bias
            self._activate(z)
            layer = z
        return room.below, room.beside

    def _activate(self, x: Array) -> None:
        if self._relu:
            np.maximum(x, 0, out=x)
        else:
            np.tanh(x, out=x)

    def _make_room(self, rows: int) -> _Buffers:
        """Memory for so many rows."""
        first = self._first[0].shape[1] if self._first else 0
        many = self._towers
        inputs = self._features + (0 if self._core is None else self._core.size)
        widths = [inputs, first, *(many * weight.shape[2] for weight, _ in self._deeper)]
        if not self._held or len(self._held[0]) < rows * inputs:
            self._held = [np.empty(rows * width, np.float32) for width in widths]
            self._rooms.clear()
        if len(self._rooms) == _ROOMS:
            self._rooms.clear()
        cut = [held[: rows * width] for held, width in zip(self._held, widths, strict=True)]
        both = cut[1].reshape(rows, first)
        layers = [both.reshape(rows, many, first // many).transpose(1, 0, 2)]
        layers += [memory.reshape(many, rows, width // many) for memory, width in zip(cut[2:], widths[2:], strict=True)]
        room = self._rooms[rows] = _Buffers(cut[0].reshape(rows, inputs), both, layers, layers[-1][0].T, layers[-1][-1])
        return room


class OwnNumpyActor(NumpyActor):
    """The same of a whole network of the user's own, whose rows begin with outputs and end with a value."""

    def _outputs(self, x: Array, room: _Buffers) -> tuple[Array, Array]:
        return x[:, : self._heads.outputs].T, x[:, -1:] * self._value + self._value_bias


_AT_ONCE = 256
"""Streams whose gates are formed at once: those of more leave the processor's cache before they are used."""


class NumpyRecurrentCore:
    """`core`, step by step, to within the order of sums what `RecurrentCore.step` says; its weights must stay where
    they lie (`flatten_`). Of one stream it takes a quarter (LSTM) to half (GRU) of what torch takes, whose calls cost
    more than what they compute; of many it is no dearer or a little dearer."""

    def __init__(self, core: RecurrentCore) -> None:
        self.size, self._lstm = core.size, core.kind == "lstm"
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        entering, staying, self._bias, self._staying_bias = (
            core.cell.get_parameter(name).detach().numpy() for name in names
        )
        self._entering, self._staying = entering.T, staying.T
        self._held = np.empty((2, 0), np.float32)
        """Memory of both products, of as many rows as there ever were at once."""

    def step(self, x: Array, state: Array, features: Array) -> Array:
        """One step of x [n, I] in `state` [n, S]: writes `features` [n, U], returns the states after it [n, S]."""
        after = np.empty(state.shape, np.float32)
        for start in range(0, len(x), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            self._step(x[some], state[some], features[some], after[some])
        return after

    def _step(self, x: Array, state: Array, features: Array, after: Array) -> None:
        units = self.size
        gates, staying = self._rooms(len(x))
        np.matmul(x, self._entering, out=gates)
        gates += self._bias
        np.matmul(state[:, :units], self._staying, out=staying)
        staying += self._staying_bias
        if self._lstm:
            gates += staying
            lstm_cell_(gates, state[:, units:], after[:, units:], features, features)
        else:
            gru_cell_(gates, staying, state, features)
        after[:, :units] = features

    def _rooms(self, rows: int) -> tuple[Array, Array]:
        """[n, G] for each product, without content."""
        gates = self._entering.shape[1]
        if self._held.shape[1] < rows * gates:
            self._held = np.empty((2, rows * gates), np.float32)
        entering, staying = self._held[:, : rows * gates].reshape(2, rows, gates)
        return entering, staying
