"""Both sides of a temporal difference: what networks say of rows, and of what was seen when their returns end.

In flow: `TransitionBatch`, or of who remembers `Sequences`. Out flow: `Ends`, and of `dqn` `ActionValues`.

Legend: `B` transitions, or rows of sequences that are trained on; `A` actions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.sequences import Sequences
from workers.policies.networks.q_policy import DQNPolicy, QPolicy, greedy_action

Rows = TransitionBatch | Sequences


class Ends(NamedTuple):
    """What networks say at both ends of returns."""

    here: Tensor
    """[B, ...] of the rows, by the online network, with gradient"""
    future: Tensor
    """[B, ...] of what was seen then, by the target network, detached"""
    choice: Tensor
    """[B, ...] of the same, by the network that chooses what is done then, detached"""


def both_ends(policy: QPolicy, rows: Rows, *, double: bool) -> Ends:
    """By the networks of `policy`. The online one chooses (`double`: van Hasselt et al. 2016), or else the target
    network itself. Of segments both begin each in the state that was stored with it."""
    online, target = policy.online, policy.target
    if isinstance(rows, Sequences):
        x = policy.inputs(rows.observation)
        every = online(x, None, rows.recall)
        with torch.no_grad():
            future = target(x, None, rows.recall)[rows.following]
        return Ends(every[rows.row], future, every.detach()[rows.following] if double else future)
    now, after, chance = rows.noises
    here = online(policy.inputs(rows.observation), now, None)
    with torch.no_grad():
        following = policy.inputs(rows.next_observation)
        future = target(following, after, None)
        return Ends(here, future, online(following, chance, None) if double else future)


class ActionValues(NamedTuple):
    """Both sides of the temporal difference."""

    values: Tensor
    """[B, A] of all actions, with gradient"""
    value: Tensor
    """[B] of the action taken, with gradient"""
    target: Tensor
    """[B] of it, detached"""
    next_values: Tensor
    """[B, A] of what was seen then, by the target network, detached"""


def value_actions(policy: DQNPolicy, rows: Rows, *, double: bool) -> ActionValues:
    """Values of all actions and of those taken, and targets of these.

    target = reward + discount * Q_target(next, a*) with a* the legal action of greatest value by the network that
    chooses.
    """
    seen = both_ends(policy, rows, double=double)
    taken = seen.here.gather(-1, rows.action[..., None])[..., 0]
    chosen = greedy_action(seen.choice, rows.next_legal)
    target = rows.reward + rows.discount * seen.future.gather(-1, chosen[..., None])[..., 0]
    return ActionValues(seen.here, taken, target, seen.future)
