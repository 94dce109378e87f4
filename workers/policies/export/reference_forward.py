"""What a network says of inputs, in torch operations alone, which other programs can repeat.

In flows: inputs and, of a recurrent policy, the state before them. Out flows: scores of choices, likeliest amounts,
value, state. Acting here uses whatever is fastest (kernels.py); these are the same formulas (protocol/README.md,
"Acting").

Legend: `n` rows, `I` inputs, `C` values of all heads, `D` amounts, `S` numbers of a state, `U` units.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from workers.policies.build import Policy
from workers.policies.distributions import OwnHeads
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.networks.normalization import RunningMoments
from workers.policies.networks.recurrent import Core, RecurrentCore, gru_cell, lstm_cell
from workers.policies.networks.soft_actor_critic import SoftActorCritic


@dataclass(slots=True)
class NetworkOutput:
    """What a network says of n rows."""

    scores: Tensor | None = None
    """[n, C]; the greatest of a head is done."""
    choices: Tensor | None = None
    """[n, K]: what is done, where that is not told by scores."""
    chances: bool = False
    """Whether scores are logits of probabilities, and not values of actions."""
    amount: Tensor | None = None
    """[n, D]: the likeliest."""
    log_std: Tensor | None = None
    """[D]"""
    value: Tensor | None = None
    """[n], in the unit of the reward."""
    state: Tensor | None = None
    """[n, S]: the next one."""
    declared: dict[str, Tensor] = field(default_factory=dict)
    """[n, *shape] each: columns of what an algorithm of the user's own declares."""


def evaluate(policy: Policy, x: Any, state: Tensor | None, legal: Tensor | None = None) -> NetworkOutput:
    """What `policy` says of x [n, I] float32, or of the leaves that its encoder reads, in `state` [n, S] where it
    remembers; values `legal` [n, C] matter only for choices of a distribution that is the user's own."""
    if isinstance(policy, ActorCritic):
        return _actor_critic(policy, x, state, legal)
    if isinstance(policy, CentralActorCritic):
        return _central(policy, x, state, legal)
    if isinstance(policy, SoftActorCritic) and policy.choices:
        return NetworkOutput(scores=policy.actor.logits(x), chances=True)
    if isinstance(policy, SoftActorCritic):
        return NetworkOutput(amount=policy.actor(x)[0].tanh())
    if state is not None:
        scores, state = policy.step(x, state)
        return NetworkOutput(scores=scores, state=state)
    said = {} if policy.declared is None else policy.declared.columns(policy.online.perceptron(x))
    return NetworkOutput(scores=policy.means(x), declared=said)


def _actor_critic(policy: ActorCritic, x: Any, state: Tensor | None, legal: Tensor | None) -> NetworkOutput:
    x = x if policy.encoder is None else policy.encoder(x)
    x, state = _remembered(x, policy.observations, policy.core, state)
    outputs, values = policy.reference(x)
    value, said = policy.denormalize(values), {} if policy.declared is None else policy.declared.columns(x)
    if isinstance(policy.heads, OwnHeads):
        choices, amounts = policy.heads.distribution(outputs, legal).mode()
        return NetworkOutput(
            choices=choices, amount=amounts if policy.heads.continuous else None, value=value, declared=said
        )
    found = _chances(outputs.T, policy, value, state, legal)
    found.declared = said
    return found


def _central(policy: CentralActorCritic, x: Any, state: Tensor | None, legal: Tensor | None) -> NetworkOutput:
    """What the actor says; the critic is for learners."""
    x = x if policy.actor.encoder is None else policy.actor.encoder(x)
    x, state = _remembered(x, policy.observations, policy.actor.core, state)
    return _chances(policy.actor(x).T, policy, None, state, legal)


def _remembered(
    x: Tensor, observations: RunningMoments | None, core: Core | None, state: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What the perceptrons take: x [n, I] normalised, and what the core makes of it behind; the next state."""
    if observations is not None:
        x = observations.standard(x)
    if core is None:
        return x, state
    assert state is not None
    features, state = _step(core, x, state) if isinstance(core, RecurrentCore) else core.step(x, state)
    return torch.cat([x, features], 1), state


def _chances(
    outputs: Tensor,
    policy: ActorCritic | CentralActorCritic,
    value: Tensor | None,
    state: Tensor | None,
    legal: Tensor | None,
) -> NetworkOutput:
    choices = sum(policy.heads.sizes)
    if policy.heads.order:
        done, means = policy.heads.greedy(outputs.T, legal)
        amount = means if policy.heads.continuous else None
        return NetworkOutput(choices=done, amount=amount, log_std=policy.log_std, value=value, state=state)
    return NetworkOutput(
        scores=outputs[:, :choices] if choices else None,
        chances=True,
        amount=outputs[:, choices:] if policy.heads.continuous else None,
        log_std=policy.log_std,
        value=value,
        state=state,
    )


def _step(core: RecurrentCore, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, I] and states [n, S] -> features [n, U] and the states after it."""
    of = core.cell.get_parameter
    entering = linear(x, of("weight_ih_l0"), of("bias_ih_l0"))
    staying = linear(state[:, : core.size], of("weight_hh_l0"), of("bias_hh_l0"))
    if core.kind == "gru":
        output = gru_cell(entering, staying, state)
        return output, output
    output, cell = lstm_cell(entering + staying, state[:, core.size :])
    return output, torch.cat([output, cell], 1)
