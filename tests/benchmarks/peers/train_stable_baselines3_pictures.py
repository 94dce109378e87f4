"""W5 by Stable-Baselines3's PPO, one process; three agents share the policy.

Settings that favour it: all copies in one call, the channels first, so that it need not turn each picture; two threads
of torch where pictures are large, one where they are small; time limits are ends, since it would ask the value of each
last observation alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv

from tests.benchmarks.peers.small_network import FEATURES, small_network
from tests.benchmarks.peers.stepping import PICTURES, SEGMENT, Pictures


class Small(BaseFeaturesExtractor):
    """For pictures that its own network is too large for."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, FEATURES)
        self._network = small_network()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self._network(observations)


class Rows(VecEnv):
    """Each row as an environment."""

    def __init__(self, name: str) -> None:
        self._pictures = Pictures(name)
        super().__init__(self._pictures.rows, self._pictures.observation_space, self._pictures.action_space)
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]

    def reset(self) -> np.ndarray:
        return self._pictures.reset()

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        return (*self._pictures.step(self._actions), self._infos)

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Sequence[bool]:
        return [False] * self.num_envs


def main() -> None:
    """Trains until it is ended."""
    name = sys.argv[1]
    environment, large = Rows(name), PICTURES[name][0] == 84
    torch.set_num_threads(2 if large else 1)
    sizes = {"n_steps": SEGMENT, "batch_size": environment.num_envs * SEGMENT // 4, "n_epochs": 2}
    network: dict[str, Any] = {"net_arch": []} | ({} if large else {"features_extractor_class": Small})
    PPO("CnnPolicy", environment, policy_kwargs=network, learning_rate=1e-3, device="cpu", **sizes).learn(10**12)


if __name__ == "__main__":
    main()
