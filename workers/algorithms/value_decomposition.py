"""Value decomposition for teams on replayed transitions: Q-learning of the team's value, which is made of its members'.

In flow: `TransitionBatch` of a team, or where its members remember `SequenceBatch`. Out flow: the loss of the online
network.

Legend: `B` transitions, `M` members.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.config.run import QMIX, VDN
from workers.algorithms.common.batches import Replay, SequenceBatch, TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.sequences import Sequences, sequences_of
from workers.algorithms.dqn import td_loss
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.policies.networks.team_q_network import TeamQPolicy


def team_estimates(policy: TeamQPolicy, batch: TransitionBatch, *, double: bool) -> tuple[Tensor, Tensor]:
    """The team's values [B] of the choices made, with gradient, and their targets [B], detached.

    value = mix(Q_1(a_1), ..., Q_M(a_M)); target = reward + discount * mix_target(Q_target,1(next, a*_1), ...) with a*_m
    the legal choice of greatest value to member m alone, by the online network (`double`) or by the target network
    itself. As mixing is monotonic, these are together the team's best (Rashid et al. 2018, equations 4 to 6; Sunehag et
    al. 2018, section 3).
    """
    now, after, choice = batch.noises
    here, following = policy.online.see(policy.inputs(batch.observation)), policy.inputs(batch.next_observation)
    value = policy.online.mix(policy.picked(policy.online.values(here, now), batch.action), here)
    with torch.no_grad():
        seen = policy.target.see(following)
        future = policy.target.values(seen, after)
        chosen = policy.best(policy.online(following, choice) if double else future, batch.next_legal)
        mixed = policy.target.mix(policy.picked(future, chosen), seen)
        target = batch.reward + batch.discount * mixed
    return value, target


def team_sequences(policy: TeamQPolicy, rows: Sequences, *, double: bool) -> tuple[Tensor, Tensor]:
    """The same of rows of segments [n]. Online and target network both begin each in the state that was stored with
    it."""
    x = policy.inputs(rows.observation)
    here = policy.online.see(x)
    values = policy.online.values(here, None, rows.recall)
    value = policy.online.mix(policy.picked(values[rows.row], rows.action), here[rows.row])
    with torch.no_grad():
        seen = policy.target.see(x)
        future = policy.target.values(seen, None, rows.recall)[rows.following]
        chosen = policy.best(values[rows.following] if double else future, rows.next_legal)
        mixed = policy.target.mix(policy.picked(future, chosen), seen[rows.following])
        target = rows.reward + rows.discount * mixed
    return value, target


class DecompositionUpdate(ReplayAlgorithm[TeamQPolicy, VDN | QMIX]):
    """Trains the networks of a team."""

    kinds = (VDN, QMIX)

    def loss(self, policy: TeamQPolicy, batch: Replay) -> Loss:
        double = self.algorithm.double
        if isinstance(batch, SequenceBatch):
            value, target = team_sequences(policy, sequences_of(batch, self.algorithm), double=double)
        else:
            value, target = team_estimates(policy, batch, double=double)
        return td_loss(value, target, self.algorithm.kappa, batch)
