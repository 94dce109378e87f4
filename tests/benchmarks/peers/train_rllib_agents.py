"""W2 or W3 by RLlib's PPO (its new API), a policy for each of the three agents, in processes of its own.

Settings that favour it: two environment runners, each with half of the copies (it steps agents that act together only
copy by copy); the learner in the driver's process; no dashboard, no check of what environments say. In W3 a layer of 64
stands before the LSTM, which it cannot be without.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.tune.registry import register_env

from tests.benchmarks.peers.stepping import (
    AGENTS,
    COPIES,
    SEGMENT,
    SPREAD_GAMMA,
    SPREAD_SEGMENT,
    SYNTHETIC_COPIES,
    Numbers,
    Spread,
)

_RUNNERS = 2
_NAMES = [f"agent_{agent}" for agent in range(AGENTS)]


class Copy(MultiAgentEnv):
    """One copy, whose rows are its agents."""

    def __init__(self, world: type[Spread] | type[Numbers]) -> None:
        super().__init__()
        self._world = world(1)
        self.possible_agents, self.agents = list(_NAMES), list(_NAMES)
        self.observation_spaces = dict.fromkeys(_NAMES, self._world.observation_space)
        self.action_spaces = dict.fromkeys(_NAMES, self._world.action_space)
        self._begun: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        seen = self._world.reset() if self._begun is None else self._begun
        return dict(zip(_NAMES, seen, strict=True)), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, reward, over = self._world.step(np.array([action_dict[name] for name in _NAMES]))
        if over[0]:  # the world has begun the next episode already
            self._begun = seen
            seen = self._world.before if isinstance(self._world, Spread) else seen
        late = dict.fromkeys([*_NAMES, "__all__"], bool(over[0]))
        told = (dict(zip(_NAMES, one, strict=True)) for one in (seen, reward.tolist()))
        return (*told, dict.fromkeys(late, False), late, {})


def main() -> None:
    """Trains until it is ended."""
    # nothing sent, nothing left at home; its workers as urgent as all others, which counts where neighbours are busy
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    ray.init(num_cpus=_RUNNERS + 1, include_dashboard=False, object_store_memory=512 * 2**20)
    spread = sys.argv[1] == "W2"
    copies, segment = (COPIES, SPREAD_SEGMENT) if spread else (SYNTHETIC_COPIES, SEGMENT)
    world = Spread if spread else Numbers
    register_env("copies", lambda _: Copy(world))
    if spread:
        shape = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    else:
        lstm = {"use_lstm": True, "lstm_cell_size": 128, "max_seq_len": segment, "vf_share_layers": True}
        shape = DefaultModelConfig(fcnet_hiddens=[64], head_fcnet_hiddens=[128, 128], fcnet_activation="tanh", **lstm)
    rows = copies * segment
    learning = {"num_epochs": 1, "lr": 1e-3, "grad_clip": 0.5, "gamma": SPREAD_GAMMA if spread else 0.99}
    config = (
        PPOConfig()
        .environment("copies", disable_env_checking=True)
        .multi_agent(policies=set(_NAMES), policy_mapping_fn=lambda agent, *_, **__: agent)
        .env_runners(
            num_env_runners=_RUNNERS,
            num_envs_per_env_runner=copies // _RUNNERS,
            rollout_fragment_length=segment,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=rows, minibatch_size=rows // 4, **learning)
        .rl_module(model_config=shape)
    )
    algorithm = config.build_algo()
    while True:
        algorithm.train()


if __name__ == "__main__":
    main()
