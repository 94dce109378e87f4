"""Adam over one flat tensor of parameters, with its gradient clipped by norm.

In flow: gradients accumulated by `backward` into one flat tensor. Out flow: parameters changed in place. One tensor
instead of one for each layer makes a step a handful of operations, whatever the network.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from protocol.config.run import PolicyConfig, Sampled, Streamed
from protocol.errors import TrainingFault
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective
from workers.policies.tensors.flat_weights import flatten_

_TINY = 1e-30
"""Zeros and denormal numbers, common where inputs never vary, would make the square root up to 30 times slower."""


def non_finite_update(loss: float, norm: float) -> TrainingFault:
    """What is wrong with an update whose `loss` or gradient's `norm` is no number."""
    return TrainingFault("update_not_finite", loss=loss, norm=norm)


def learning_rate_of(config: PolicyConfig, algorithm: Streamed | Sampled, progress: float) -> float:
    """The learning rate when `progress` in [0, 1] of the run is over."""
    return config.learning_rate * (1 - progress if algorithm.anneal_learning_rate else 1.0)


def adam_step(
    parameters: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    shares: tuple[float | Tensor, float | Tensor],
    rate: float | Tensor,
    scale: float | Tensor,
    epsilon: float,
) -> None:
    """Moves `parameters` [..., P] by one step of Adam (Kingma & Ba 2015, algorithm 1, in the order of section 2).

    m = lerp(m, g, 1 - beta_1);  v = lerp(v, g^2, 1 - beta_2);  theta = theta - rate * m / (sqrt(v) / scale + epsilon)

    `shares` are 1 - beta_1 and 1 - beta_2, `rate` is alpha / (1 - beta_1^t) and `scale` sqrt(1 - beta_2^t): numbers, or
    [K, 1] of K policies.
    """
    first, second = moments
    first.lerp_(gradient, shares[0])
    second.lerp_(gradient.square(), shares[1])
    root = second.add(_TINY).sqrt_().div_(scale).add_(epsilon)
    parameters.addcdiv_(first, root.div_(-rate))


class FlatGradient:
    """The gradient of all trainable parameters of `module`, which it makes flat.

    `gradient` is flat: the `.grad` of every parameter is a view on it. Pass a module that is already on its final
    device; after moving it, make a new one. `parts`: prefixes of names whose gradients are clipped each by themselves;
    none: all together.
    """

    def __init__(self, module: nn.Module, *, parts: tuple[str, ...] = ()) -> None:
        weights = flatten_(module)
        self.parameters, self.parts = weights.parameters, parts
        self._told = self.parameters.new_zeros(len(self.parameters) + 1)
        """The gradient and behind it the loss: what ranks add up at once."""
        self.gradient = self._told[:-1]
        base = self.parameters.storage_offset()
        for parameter in module.parameters():
            if parameter.requires_grad:
                start = parameter.storage_offset() - base
                parameter.grad = self.gradient[start : start + parameter.numel()].view(parameter.shape)
        spans = [weights.slice(prefix) for prefix in parts] or [self.parameters]
        places = [span.storage_offset() - base for span in spans]
        self._parts = [self.gradient[at : at + len(span)] for at, span in zip(places, spans, strict=True)]

    def backward(self, loss: Tensor, max_norm: float, ranks: Collective = SINGLE_PROCESS) -> Tensor:
        """Replaces `gradient` by that of `loss`, summed over `ranks`, each part cut to `max_norm`; returns the norm of
        the whole before.

        Raises TrainingFault, on all ranks and with the parameters as they were, if loss or gradient is not finite.
        """
        self.gradient.zero_()
        loss.backward()
        if ranks.size > 1:
            self._told[-1] = loss.detach()
            self._told.copy_(ranks.all_reduce(self._told))
            loss = self._told[-1]
        norm = torch.linalg.vector_norm(self.gradient)
        if not math.isfinite(norm.item()) or not math.isfinite(loss.item()):
            raise non_finite_update(loss.item(), norm.item())
        for part in self._parts:
            length = norm if len(self._parts) == 1 else torch.linalg.vector_norm(part)
            part.mul_((max_norm / (length + 1e-6)).clamp(max=1.0))
        return norm


class FlatAdam(FlatGradient):
    """Adam for all trainable parameters of `module`."""

    def __init__(
        self,
        module: nn.Module,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-5,
        parts: tuple[str, ...] = (),
    ) -> None:
        super().__init__(module, parts=parts)
        self.betas, self.epsilon = betas, epsilon
        self.first = torch.zeros_like(self.parameters)
        self.second = torch.zeros_like(self.parameters)
        self.steps = 0
        self.held: list[Tensor] = []
        """Parameters that a step leaves as they are. Their moments go on, so that they are those of now when these
        parameters are let go."""

    def step(self, learning_rate: float) -> None:
        """Moves the parameters by one Adam step along `gradient`."""
        self.steps += 1
        one, two = self.betas
        rate, scale = learning_rate / (1 - one**self.steps), math.sqrt(1 - two**self.steps)
        moments, shares = (self.first, self.second), (1 - one, 1 - two)
        before = [parameter.detach().clone() for parameter in self.held]
        adam_step(self.parameters, self.gradient, moments, shares, rate, scale, self.epsilon)
        for parameter, values in zip(self.held, before, strict=True):
            parameter.detach().copy_(values)

    def reset(self) -> None:
        """Forgets all moments, as after weights from elsewhere were loaded."""
        self.steps = 0
        for moment in (self.first, self.second, self.gradient):
            moment.zero_()

    def state(self) -> dict[str, Tensor]:
        """Copies in host memory, for a checkpoint."""
        return {
            "adam.first": self.first.cpu().clone(),
            "adam.second": self.second.cpu().clone(),
            "adam.steps": torch.tensor(self.steps),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state` gave; ValueError if it is of another network."""
        if state["adam.first"].shape != self.first.shape:
            raise ValueError(
                f"the optimiser's state has {len(state['adam.first'])} numbers but the network {len(self.first)}; "
                "resume with the network the checkpoint was made with"
            )
        self.first.copy_(state["adam.first"])
        self.second.copy_(state["adam.second"])
        self.steps = int(state["adam.steps"])
