"""Value decomposition for teams on replayed transitions: Q-learning of the team's value, which is made of its members'.

In flow: `TransitionBatch` of a team. Out flow: the policy's online and target network and exploration rate, changed in
place, and metrics.

Legend: `B` transitions, `M` members.
"""

from __future__ import annotations

import torch

from protocol.config.run import QMIX, VDN
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.dqn import DQNEstimates, td_loss
from workers.algorithms.off_policy import PLAIN, Drawn, Loss, NoiseTriple, OffPolicyUpdate
from workers.policies.networks.team_q_network import TeamQPolicy

__all__ = ["DecompositionUpdate", "team_estimates"]


def team_estimates(
    policy: TeamQPolicy, batch: TransitionBatch, *, double: bool, noise: NoiseTriple = PLAIN
) -> DQNEstimates:
    """The team's values of the choices made, and their targets.

    value = mix(Q_1(a_1), ..., Q_M(a_M)); target = reward + discount * mix_target(Q_target,1(next, a*_1), ...) with a*_m
    the legal choice of greatest value to member m alone, by the online network (`double`) or by the target network
    itself. As mixing is monotonic, these are together the team's best (Rashid et al. 2018, equations 4 to 6; Sunehag et
    al. 2018, section 3).
    """
    here, following = policy.inputs(batch.observation), policy.inputs(batch.next_observation)
    value = policy.online.mix(policy.picked(policy.online(here, noise[0]), batch.action), here)
    with torch.no_grad():
        future = policy.target(following, noise[1])
        chosen = policy.best(policy.online(following, noise[2]) if double else future, batch.next_legal)
        mixed = policy.target.mix(policy.picked(future, chosen), following)
        target = batch.reward + batch.discount * mixed
    return DQNEstimates(value, target)


class DecompositionUpdate(OffPolicyUpdate[TeamQPolicy, VDN | QMIX]):
    """Trains the networks of a team."""

    kinds = (VDN, QMIX)

    def ask(self, policy: TeamQPolicy, transitions: TransitionBatch, drawn: Drawn) -> Loss:
        now, after, chosen = drawn
        found = team_estimates(policy, transitions, double=self.algorithm.double, noise=(now, after, chosen))
        return td_loss(found.value, found.target, self.algorithm.kappa, transitions.weight)
