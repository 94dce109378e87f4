"""Several policies of one kind that act as one: each layer of all of them is one batched product.

In flows: weights as they are adopted, observations of all policies. Out flows: what each policy does, as it would
alone: the same bits of feed-forward ones with a value, and to within the order of sums of others.

Legend: `K` policies, `n` rows of each, `I` elements of an observation, `A` outputs, `S` numbers of a state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.actor_critic_mlp import evaluate
from workers.policies.networks.q_policy import DQNPolicy, QPolicy, choose
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic
from workers.policies.stacked.stacked_weights import stack_policies
from workers.policies.tensors.scratch import ScratchBuffers


def stackable(policy: object) -> bool:
    """Whether policies like this one may act as one."""
    return isinstance(policy, ActorCritic | IQNPolicy | DQNPolicy) and not policy.modular


class StackedActors:
    """Of actor-critics: draws actions and says their values."""

    def __init__(self, policies: Sequence[ActorCritic]) -> None:
        self._policy, self._scratch = StackedActorCritic(policies), ScratchBuffers()
        self.weights = self._policy.weights

    @torch.inference_mode()
    def act(self, observation: NDArray, noise: Noise, legal: Legal, state: Remembered) -> dict[str, NDArray]:
        """`observation` [K, n, *shape]; numbers from `noise`, `legal` [K * n, C] and `state` [K * n, S], one policy
        after another -> as `ActorCritic.act`, [K * n, ...] each."""
        policy, (many, rows) = self._policy, observation.shape[:2]
        x, after = policy.acting_inputs(torch.from_numpy(observation)), {}
        if policy.core is not None:
            assert state is not None
            features, following = policy.core.step(x, torch.from_numpy(state).to(x.device).view(many, rows, -1))
            x, after = torch.cat([x, features], 2), {"state": following.flatten(0, 1).cpu().numpy()}
        weights = [tensor.detach() for tensor in policy.towers]
        logits, values, _ = evaluate(x, weights, policy.activation, self._scratch)
        value = policy.real(values).flatten().cpu().numpy()
        outputs = logits.transpose(0, 1).flatten(1).contiguous().cpu().numpy()
        return {**policy.heads.sample(outputs, self._spread(rows), noise, legal), "value": value, **after}

    def _spread(self, rows: int) -> NDArray[np.float32] | None:
        """[K * n, D]: how much amounts vary."""
        log_std = self._policy.weights.views.get("log_std")
        return None if log_std is None else log_std.detach().cpu().numpy().repeat(rows, 0)


class StackedQActors:
    """Of policies that do what they value most, or at times anything."""

    def __init__(self, policies: Sequence[QPolicy]) -> None:
        self._policy, self.weights = stack_policies(policies)

    @torch.inference_mode()
    def act(self, observation: NDArray, noise: Noise, legal: Legal, state: Remembered) -> dict[str, NDArray]:
        """`observation` [K, n, F, *shape] -> as `QPolicy.act`, [K * n] each."""
        assert state is None
        many, rows = observation.shape[:2]
        drawn: Tensor | None = None
        if self._policy.numbers:
            normal = noise.standard_normal((many * rows, self._policy.numbers), np.float32)
            drawn = torch.from_numpy(normal).to(self.weights.parameters.device).view(many, rows, -1)
        means = self._policy.means(self._policy.inputs(torch.from_numpy(observation)), drawn)
        epsilon = self._policy.epsilon.cpu().numpy().repeat(rows)
        return {"action": choose(means.flatten(0, 1), noise, epsilon, legal)}
