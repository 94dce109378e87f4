"""Random network distillation (Burda et al. 2018) on observations that others have made.

In flow: `ObservationBatch` of the agents watched. Out flow: the predictor and the moments of both ends, changed in
place, and metrics.

Legend: `B` segments of a batch, `T` segment length, `N` real rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.config.run import AuxiliaryConfig
from protocol.errors import TrainingFault
from workers.algorithms.common.adam import FlatAdam
from workers.algorithms.common.batches import ObservationBatch, Resumable
from workers.algorithms.common.returns import linear_recurrence
from workers.policies.networks.rnd_networks import RNDNetworks


def discounted_sums(bonus: Tensor, gamma: float) -> Tensor:
    """y[t] = bonus[t] + gamma * y[t - 1] on [T, B]: what was earned so far, the older the less. Its spread is the unit
    of intrinsic rewards (Burda et al. 2018, section 2.4, who sum forwards in time as well)."""
    return linear_recurrence(bonus.flip(0), torch.full_like(bonus, gamma)).flip(0)


class RNDUpdate(Resumable):
    """Updates `networks`, which must be on their final device, from batches of observations."""

    def __init__(self, networks: RNDNetworks, config: AuxiliaryConfig, seed: int = 0) -> None:
        self.networks, self.config, self.algorithm = networks, config, config.algorithm
        self.optimizer = FlatAdam(networks)
        self.generator = torch.Generator().manual_seed(seed)

    def update(self, batch: ObservationBatch, progress: float = 0.0) -> dict[str, float]:
        """Adds what was seen to the moments, then trains `epochs` times on all of it, `minibatches` steps an epoch.

        Every observation counts once: a segment's rows and its true last ones, not the row for bootstrapping, which the
        next segment brings. Raises TrainingFault for a number that is not finite, before the parameters of that step
        are touched. A batch without real rows changes nothing.
        """
        real = batch.real
        rows = torch.cat([batch.observation[:, :-1][real], batch.final_observation[batch.final_row >= 0]])
        if not len(rows):
            return {"loss": 0.0, "rows": 0.0}
        flat = self.networks.numbers(rows)
        if not bool(flat.isfinite().all()):  # moments would never forget it
            raise TrainingFault("observation_not_finite")
        self.networks.observations.update(flat)
        self._weigh(batch, real)
        before = self.optimizer.parameters.clone()
        records: list[Tensor] = []
        x = self.networks.inputs(rows)
        for _ in range(self.algorithm.epochs):
            order = torch.randperm(len(x), generator=self.generator).to(x.device)
            for part in order.tensor_split(self.algorithm.minibatches):
                if not len(part):
                    continue
                with self.arithmetic.autocast(x.device):
                    loss = self.networks(x[part]).mean()
                norm = self.optimizer.backward(loss, self.config.max_grad_norm)
                self.optimizer.step(self.config.learning_rate)
                records.append(torch.stack([loss.detach(), norm]))
        delta = torch.linalg.vector_norm(self.optimizer.parameters - before)
        loss_, norm_, moved = torch.cat([torch.stack(records).mean(0), delta[None]]).tolist()
        return {
            "loss": loss_,
            "grad_norm": norm_,
            "weight_delta": moved,
            "intrinsic_std": self.networks.returns.scalars()[1],
            "learning_rate": self.config.learning_rate,
            "rows": float(len(x)),
        }

    @torch.no_grad()
    def _weigh(self, batch: ObservationBatch, real: Tensor) -> None:
        """Adds the intrinsic returns of these segments to their moments, by what is not known of them yet."""
        error = self.networks(self.networks.inputs(batch.observation[:, :-1])).view(real.shape)
        sums = discounted_sums(torch.where(real, error, 0.0).T, self.algorithm.gamma)
        self.networks.returns.update(sums[real.T])
