"""Deep Q-networks on replayed transitions (Mnih et al. 2015), with double Q-learning and a target network.

In flow: `TransitionBatch`, or where the networks remember `SequenceBatch`. Out flow: the loss of the online network.

Legend: `B` transitions. With `K` policies of one kind in front, everything is of each of them.
"""

from __future__ import annotations

from torch import Tensor

from protocol.config.run import DQN
from workers.algorithms.common.batches import Replay
from workers.algorithms.common.loss import Loss
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.policies.networks.q_policy import DQNPolicy


class DQNUpdate(ReplayAlgorithm[DQNPolicy, DQN]):
    """Trains the network of DQN."""

    kinds = (DQN,)

    def loss(self, policy: DQNPolicy, batch: Replay) -> Loss:
        seen = self.evaluate(policy, batch)
        return td_loss(seen.value, seen.target, self.algorithm.kappa, batch)


def huber(value: Tensor, target: Tensor, kappa: float | None) -> Tensor:
    """Huber loss [..., B]: half the square of the error up to kappa, linear beyond it; None: the square throughout."""
    error = target - value
    if kappa is None:
        return 0.5 * error.square()
    cut = error.clamp(-kappa, kappa)
    return cut * (error - 0.5 * cut)


def td_loss(value: Tensor, target: Tensor, kappa: float | None, batch: Replay) -> Loss:
    """What moves `value` [..., B] towards `target` [..., B]."""
    said = value.detach()
    error = (target - said).abs()
    metrics = {"value_mean": said.mean(-1), "target_mean": target.mean(-1), "td_error": error.mean(-1)}
    return Loss(batch.mean(huber(value, target, kappa)), metrics, error)
