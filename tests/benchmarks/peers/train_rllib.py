"""W1 by RLlib's PPO (its new API), in processes of its own.

Settings that favour it: all carts in one call of Gymnasium's vectorised physics; the learner in the driver's process;
one environment runner beside it, and no dashboard.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from tests.benchmarks.peers.stepping import COPIES, SEGMENT, Carts


def _carts(context: Any) -> Any:
    return Carts(context["num_envs"]) if "num_envs" in context else gymnasium.make("CartPole-v1")


def main() -> None:
    """Trains until it is ended."""
    # nothing sent, nothing left at home; its workers as urgent as all others, which counts where neighbours are busy
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=512 * 2**20)
    register_env("carts", _carts)
    rows = COPIES * SEGMENT
    shape = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("carts")
        .env_runners(
            num_env_runners=1,
            num_envs_per_env_runner=COPIES,
            rollout_fragment_length=SEGMENT,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=rows, minibatch_size=rows // 4, num_epochs=1, lr=1e-3, grad_clip=0.5)
        .rl_module(model_config=shape)
    )
    algorithm = config.build_algo()
    while True:
        algorithm.train()


if __name__ == "__main__":
    main()
