"""How far a policy has gone from what it started as, as a part of its loss.

In flows: a minibatch, what it looks like to the policy, and to the policy as it began. Out flow: the loss, raised.

Legend: `T` segment length, `b` segments of a minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.config.trainable import StartKL
from workers.algorithms.common.advantages import PolicyEvaluation, total
from workers.algorithms.common.loss import Loss
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic

_LARGEST = 20.0
"""Of a logarithm: beyond, the policy has all but given up what its start would do, and nothing finite is its
exponential."""


class StartDivergence:
    """KL(policy | start) times what `config` says is due; `start` is the policy with the weights that it began with."""

    def __init__(self, start: ActorCritic | CentralActorCritic, config: StartKL) -> None:
        self.start, self._config = start, config
        start.requires_grad_(False)
        self.coefficient = config.coefficient

    def fade(self, rows: int) -> None:
        """As is due after so many agent steps of the policy."""
        steps = self._config.steps
        self.coefficient = self._config.coefficient * (1.0 if steps is None else max(0.0, 1 - rows / steps))

    def raised(self, found: Loss, seen: PolicyEvaluation, log_probability: Tensor, weight: Tensor) -> Loss:
        """`found` with the divergence in it, and as `start_kl` among its metrics; `log_probability` [T, b] is that of
        the start, `weight` [T, b] each row's in the mean."""
        divergence = total(start_divergence(seen, log_probability) * weight, 1)
        metrics = {**found.metrics, "start_kl": divergence.detach()}
        return found._replace(total=found.total + self.coefficient * divergence, metrics=metrics)


def start_divergence(seen: PolicyEvaluation, log_probability: Tensor) -> Tensor:
    """[T, b]: r - 1 - log(r) with r the start's probability of the action over the policy's, times `seen.ratio`, as it
    was chosen by an older version; never negative, and in the mean KL(policy | start) (k3 of Schulman, "Approximating
    KL divergence", 2020, http://joschu.net/blog/kl-approx.html), of which it has the gradient as well."""
    difference = log_probability - seen.log_probability
    return seen.ratio * torch.special.expm1(difference.clamp(max=_LARGEST)) - seen.ratio * difference
