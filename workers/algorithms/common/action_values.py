"""Both sides of the temporal difference of `dqn`: what its networks say of transitions, and what they should say.

In flow: `TransitionBatch`, or of who remembers `Sequences`. Out flow: `ActionValues`.

Legend: `B` transitions, or rows of sequences that are trained on; `A` actions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.sequences import Sequences
from workers.policies.networks.q_network import DQNPolicy
from workers.policies.networks.q_policy import greedy_action


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


def value_actions(policy: DQNPolicy, batch: TransitionBatch, *, double: bool) -> ActionValues:
    """Values of all actions and of those taken, and targets of these.

    target = reward + discount * Q_target(next, a*) with a* the legal action of greatest value by the online network
    (`double`: van Hasselt et al. 2016) or else by the target network itself.
    """
    now, after, choice = batch.noises
    here = policy.online(policy.inputs(batch.observation), now)
    taken = here.gather(-1, batch.action[..., None])[..., 0]
    with torch.no_grad():
        following = policy.inputs(batch.next_observation)
        future = policy.target(following, after)
        chosen = greedy_action(policy.online(following, choice) if double else future, batch.next_legal)
        target = batch.reward + batch.discount * future.gather(-1, chosen[..., None])[..., 0]
    return ActionValues(here, taken, target, future)


def sequence_actions(policy: DQNPolicy, rows: Sequences, *, double: bool) -> ActionValues:
    """The same of rows of segments. Online and target network both begin each in the state that was stored with it."""
    x = policy.inputs(rows.observation)
    here = policy.online(x, recall=rows.recall)
    values = here[rows.row]
    with torch.no_grad():
        future = policy.target(x, recall=rows.recall)[rows.following]
        chosen = greedy_action(here.detach()[rows.following] if double else future, rows.legal)
        target = rows.reward + rows.discount * future.gather(-1, chosen[:, None])[:, 0]
    return ActionValues(values, values.gather(-1, rows.action[:, None])[:, 0], target, future)
