"""W2 by TorchRL's PPO, a policy for each of the three agents: its collectors, multi-agent networks, advantages, loss.

Settings that favour it: two of its asynchronous collectors, which go on while the main process learns, each with an
environment of TorchRL's own kind that steps half of the copies in one call; minibatches cut from one shuffled batch
without a replay buffer between.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from tests.benchmarks.peers.stepping import AGENTS, COPIES, SPREAD_GAMMA, SPREAD_SEGMENT, Spread

_COLLECTORS = 2
_OBSERVATION, _ACTIONS = 18, 5
_ENDS = ("done", "terminated", "truncated")


class Spreads(EnvBase):
    """Copies of W2's world as a batch of TorchRL's, whose agents are a group."""

    batch_locked = True

    def __init__(self, copies: int = COPIES // _COLLECTORS) -> None:
        super().__init__(device="cpu", batch_size=torch.Size([copies]))
        self._spread, self._copies = Spread(copies), copies
        rows = (copies, AGENTS)
        self.observation_spec = self._group(observation=Unbounded((*rows, _OBSERVATION)))
        self.action_spec = self._group(action=Categorical(_ACTIONS, shape=rows, dtype=torch.int64))
        self.reward_spec = self._group(reward=Unbounded((*rows, 1)))
        flags = {end: Categorical(2, shape=(copies, 1), dtype=torch.bool) for end in _ENDS}
        self.full_done_spec = Composite(**flags, shape=(copies,))

    def _group(self, **specs: object) -> Composite:
        return Composite(agents=Composite(**specs, shape=(self._copies, AGENTS)), shape=(self._copies,))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDictBase:
        begun = tensordict is not None and tensordict.get("_reset", None) is not None
        seen = self._spread.now if begun else self._spread.reset()  # those that ended have begun anew already
        over = torch.zeros((self._copies, 1), dtype=torch.bool)
        return self._told({"observation": self._by_copy(seen)}, over)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        _, reward, over = self._spread.step(tensordict["agents", "action"].T.numpy())
        group = {"observation": self._by_copy(self._spread.before), "reward": self._by_copy(reward)[..., None]}
        return self._told(group, torch.from_numpy(over[: self._copies])[:, None])

    def _by_copy(self, rows: object) -> torch.Tensor:
        """[R, ...] -> [E, A, ...]."""
        return torch.as_tensor(rows).unflatten(0, (AGENTS, self._copies)).transpose(0, 1)

    def _told(self, group: dict[str, torch.Tensor], over: torch.Tensor) -> TensorDictBase:
        agents = TensorDict(group, batch_size=[self._copies, AGENTS])
        ends = {"done": over, "terminated": torch.zeros_like(over), "truncated": over.clone()}
        return TensorDict({"agents": agents, **ends}, batch_size=[self._copies])

    def _set_seed(self, seed: int | None) -> None:
        """Each copy has its own."""


def _towers(out: int) -> nn.Module:
    """64×64 for each agent."""
    sizes = {"n_agent_inputs": _OBSERVATION, "n_agent_outputs": out, "n_agents": AGENTS, "depth": 2, "num_cells": 64}
    return MultiAgentMLP(**sizes, centralized=False, share_params=False, activation_class=nn.Tanh)


def _policies() -> tuple[ProbabilisticActor, ValueOperator]:
    seen = [("agents", "observation")]
    actor = ProbabilisticActor(
        TensorDictModule(_towers(_ACTIONS), in_keys=seen, out_keys=[("agents", "logits")]),
        in_keys=[("agents", "logits")],
        out_keys=[("agents", "action")],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    return actor, ValueOperator(_towers(1), in_keys=seen, out_keys=[("agents", "state_value")])


def _loss(actor: ProbabilisticActor, critic: ValueOperator) -> tuple[GAE, ClipPPOLoss]:
    ends = {end: ("agents", end) for end in ("done", "terminated")}
    said = {"reward": ("agents", "reward"), "value": ("agents", "state_value"), **ends}
    found = {"advantage": ("agents", "advantage"), "value_target": ("agents", "value_target")}
    advantages = GAE(gamma=SPREAD_GAMMA, lmbda=0.95, value_network=critic)
    advantages.set_keys(**said, **found)
    apart = {"normalize_advantage": True, "normalize_advantage_exclude_dims": (-2,)}  # of each agent
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, **apart)
    loss.set_keys(action=("agents", "action"), sample_log_prob=("agents", "action_log_prob"), **said, **found)
    return advantages, loss


def main() -> None:
    """Trains until it is ended."""
    actor, critic = _policies()
    advantages, loss = _loss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    frames = COPIES // _COLLECTORS * SPREAD_SEGMENT
    collector = MultiAsyncCollector([Spreads] * _COLLECTORS, actor, frames_per_batch=frames, total_frames=-1)
    parts: list[TensorDictBase] = []
    for part in collector:
        parts.append(part)
        if len(parts) < _COLLECTORS:
            continue
        data: Any = torch.cat(parts)
        parts.clear()
        told = data["next"]
        for end in ("done", "terminated"):
            told["agents", end] = told[end].unsqueeze(-2).expand(told["agents", "reward"].shape)
        with torch.no_grad():
            flat = advantages(data).reshape(-1)
        for rows in torch.randperm(len(flat)).chunk(4):
            losses = loss(flat[rows])
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        collector.update_policy_weights_()


if __name__ == "__main__":
    main()
