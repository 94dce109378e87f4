"""The policy of SAC: numbers drawn from a normal distribution and squashed by tanh, or one of several choices, with
twin critics beside it.

In flow: stacked observations. Out flows: amounts in (-1, 1), or a choice (acting), or amounts with their
log-probability, or logits, and the critics' values (learning).

Amounts are what workers/policies/action_encoding.py calls so: in units of half the range of a box, 0 in its middle.
Squashed ones reach every bound and never go beyond, so rows hold what the world got.

Legend: `B` rows, `F` stacked frames, `I` inputs, `D` amounts, `A` choices, `H` units of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, pi, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from workers.policies.distributions import Heads, Legal, Noise, Remembered
from workers.policies.networks.layers import HIDDEN_GAIN, Perceptron, RowEncoder, orthogonal, orthogonal_layer
from workers.policies.networks.q_policy import stacked_rows
from workers.policies.tensors.kernels import Activation, tanh, to_float32

LOG_STD = (-20.0, 2.0)
"""Bounds of the logarithm of the standard deviation."""


def sample_tanh_normal(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Amounts [B, D] = tanh(mean + std * noise) and their log-probability [B] (Haarnoja et al. 2018, equation 21).

    log(1 - tanh(u)^2) = 2 * (log 2 - u - softplus(-2 u)), which does not lose the digits that the left side loses for
    large u.
    """
    before = mean + log_std.exp() * noise
    normal = -(0.5 * noise.square() + log_std + 0.5 * log(2 * pi))
    correction = 2 * (log(2) - before - softplus(-2 * before))
    return before.tanh(), (normal - correction).sum(1)


class TwinCritics(nn.Module):
    """Two critics of equal shape, computed together: parameters are stacked on the first axis. They value amounts that
    they are given, or each of so many `choices`."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        activation: Activation,
        encoder: RowEncoder | None = None,
        choices: int | None = None,
    ) -> None:
        super().__init__()
        self.activation, self.encoder = activation, encoder
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for units, gain in [*((units, HIDDEN_GAIN) for units in hidden), (choices or 1, 1.0)]:
            self.weights.append(nn.Parameter(orthogonal((2, inputs, units), gain)))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, units)))
            inputs = units

    def forward(self, x: Tensor, amount: Tensor, frozen: bool = False) -> Tensor:
        """Inputs [B, I], or rows for the encoder, and amounts [B, D] -> values [2, B]; `frozen`: without gradients for
        the critics."""
        return self._values(x, amount, frozen)[..., 0]

    def of_choices(self, x: Tensor) -> Tensor:
        """Inputs [B, I], or rows for the encoder -> values of all choices [2, B, A]."""
        return self._values(x, None, frozen=False)

    def _values(self, x: Tensor, amount: Tensor | None, frozen: bool) -> Tensor:
        if self.encoder is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
                x = self.encoder(x)
        layers = list(zip(self.weights, self.biases, strict=True))
        if frozen:
            layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
        y = (x if amount is None else torch.cat([x, amount], 1)).expand(2, -1, -1)
        for weight, bias in layers[:-1]:
            z = torch.baddbmm(bias, y, weight)
            y = tanh(z) if self.activation == "tanh" else z.relu()
        weight, bias = layers[-1]
        return to_float32(torch.baddbmm(bias, y, weight))


class SACActor(nn.Module):
    """Logits of choices, or means and logarithms of standard deviations of the numbers before they are squashed."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        activation: Activation,
        encoder: RowEncoder | None = None,
    ) -> None:
        super().__init__()
        self.perceptron = Perceptron(inputs, hidden, activation, encoder)
        self.head = orthogonal_layer(nn.Linear(self.perceptron.outputs, outputs), 0.01)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, I] float32 -> means and log standard deviations [B, D]."""
        mean, log_std = self.logits(x).chunk(2, 1)
        return mean, log_std.clamp(*LOG_STD)

    def logits(self, x: Tensor) -> Tensor:
        """[B, I] float32 -> logits [B, A]."""
        return to_float32(self.head(self.perceptron(x)))


class SoftActorCritic(nn.Module):
    """The actor, its critics with their targets, and the logarithm of the temperature. Who acts needs the actor alone,
    and only that is published: entries `actor.*`. There are `amounts`, or one of `choices`."""

    def __init__(
        self,
        shape: Sequence[int],
        amounts: int,
        hidden: Sequence[int],
        activation: Activation,
        *,
        choices: int | None = None,
        frames: int = 1,
        temperature: float = 1.0,
        encoder: Callable[[], RowEncoder] | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.amounts, self.frames, self.modular = tuple(shape), amounts, frames, encoder is not None
        self.choices = choices
        own, *its = (None if encoder is None else encoder() for _ in range(3))
        inputs = frames * prod(shape) if own is None else own.features
        actor = SACActor(inputs, choices or 2 * amounts, hidden, activation, own)
        self.critics = TwinCritics(inputs + amounts, hidden, activation, its[0], choices)
        self.actor = actor  # the last that is trained: its buffers then lie beside its parameters
        self.log_temperature = nn.Parameter(torch.tensor(log(temperature)))
        self.targets = TwinCritics(inputs + amounts, hidden, activation, its[1], choices)
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)

    def inputs(self, observation: Tensor) -> Tensor:
        """[B, F, *shape] -> [B, F * I] float32, or for encoders as it is. Raises ValueError for another number of
        frames."""
        if self.modular:
            return observation.to(self.log_temperature.device)
        return stacked_rows(observation, self.frames, self.shape, self.log_temperature.device)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Noise, greedy: bool = False, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """Amounts float32 [B, D] in (-1, 1) for `observation` [B, F, *shape], with an `action` [B, 0]; or an `action`
        [B] of the choices, of which `legal` [B, A] may be made. It remembers nothing.

        Takes [B, D] normal numbers from `noise`, or for choices B float32 ones, or none when `greedy` (then the
        squashed mean is given, or the likeliest choice).
        """
        if self.choices is not None:
            logits = self.actor.logits(self.inputs(observation)).T.cpu().numpy()
            drawn = Heads((self.choices,)).sample(logits, None, None if greedy else noise, legal)
            return {"action": drawn["action"]}
        mean, log_std = (part.cpu().numpy() for part in self.actor(self.inputs(observation)))
        if not greedy:
            mean = mean + np.exp(log_std) * noise.standard_normal(mean.shape, np.float32)
        return {"action": np.empty((len(mean), 0), np.int64), "amount": np.tanh(mean)}
