"""W1 by TorchRL's PPO, one process: its collector, its advantages, its loss.

Settings that favour it: an environment of its own kind, which steps all carts in one call and begins ended ones anew at
once; no numbers of trajectories; minibatches cut from one shuffled batch without a replay buffer between.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from tests.benchmarks.peers.stepping import COPIES, SEGMENT, Carts


class Batched(EnvBase):
    """Gymnasium's vector environment as a batch of TorchRL's."""

    batch_locked = True

    def __init__(self) -> None:
        super().__init__(device="cpu", batch_size=torch.Size([COPIES]))
        self._carts = Carts()
        self.observation_spec = Composite(observation=Unbounded((COPIES, 4)), shape=(COPIES,))
        self.action_spec = Categorical(2, shape=(COPIES,), dtype=torch.int64)
        self.reward_spec = Bounded(0, 1, (COPIES, 1))
        flag = Categorical(2, shape=(COPIES, 1), dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(COPIES,))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDictBase:
        which = None if tensordict is None else tensordict.get("_reset", None)
        if which is None:
            observation = torch.from_numpy(self._carts.reset(seed=0)[0])
        else:
            self._carts.restart(which.flatten().numpy())
            observation = torch.from_numpy(self._carts.seen())
        none = torch.zeros((COPIES, 1), dtype=torch.bool)
        told = {"observation": observation, "done": none, "terminated": none.clone(), "truncated": none.clone()}
        return TensorDict(told, batch_size=[COPIES])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation, reward, terminated, truncated, _ = self._carts.step(tensordict["action"].numpy())
        ends, late = torch.from_numpy(terminated)[:, None], torch.from_numpy(truncated)[:, None]
        told = {
            "observation": torch.from_numpy(observation),
            "reward": torch.from_numpy(reward)[:, None],
            "done": ends | late,
            "terminated": ends,
            "truncated": late,
        }
        return TensorDict(told, batch_size=[COPIES])

    def _set_seed(self, seed: int | None) -> None:
        """The reset seeds it."""


def _tower(out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))


def main() -> None:
    """Trains until it is ended."""
    environment = Batched()
    actor = ProbabilisticActor(
        TensorDictModule(_tower(2), in_keys=["observation"], out_keys=["logits"]),
        spec=environment.action_spec,
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(_tower(1), in_keys=["observation"])
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    batch = COPIES * SEGMENT
    for data in Collector(environment, actor, frames_per_batch=batch, total_frames=-1, track_traj_ids=False):
        with torch.no_grad():
            flat = advantages(data).reshape(-1)
        for rows in torch.randperm(batch).chunk(4):
            told = loss(flat[rows])
            (told["loss_objective"] + told["loss_critic"] + told["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
