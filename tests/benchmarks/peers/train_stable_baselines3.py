"""W1 by Stable-Baselines3's PPO, one process.

Settings that favour it: all carts in one call of Gymnasium's vectorised physics instead of one by one, no monitor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

from tests.benchmarks.peers.stepping import COPIES, SEGMENT, Carts


class Vectorised(VecEnv):
    """Gymnasium's vector environment in the form that Stable-Baselines3 takes."""

    def __init__(self) -> None:
        self._carts = Carts()
        super().__init__(COPIES, self._carts.single_observation_space, self._carts.single_action_space)

    def reset(self) -> np.ndarray:
        return np.asarray(self._carts.reset(seed=0)[0])

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, reward, terminated, truncated, _ = self._carts.step(self._actions)
        done = terminated | truncated
        told: list[dict[str, Any]] = [{} for _ in range(COPIES)]
        for copy in np.flatnonzero(done):
            told[copy] = {"terminal_observation": observation[copy], "TimeLimit.truncated": truncated[copy]}
        return observation, reward.astype(np.float32), done, told

    def close(self) -> None:
        self._carts.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self._carts, attr_name, None)] * COPIES

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Sequence[bool]:
        return [False] * COPIES


def main() -> None:
    """Trains until it is ended."""
    batch = COPIES * SEGMENT // 4
    settings = {"n_steps": SEGMENT, "batch_size": batch, "n_epochs": 1, "learning_rate": 1e-3, "device": "cpu"}
    PPO("MlpPolicy", Vectorised(), policy_kwargs={"net_arch": [64, 64]}, **settings).learn(10**12)


if __name__ == "__main__":
    main()
