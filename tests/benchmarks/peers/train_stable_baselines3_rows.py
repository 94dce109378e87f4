"""W2 (whose three agents share the policy) by Stable-Baselines3's PPO.

Settings that favour it: two of its subprocesses, each of which steps half of the copies in one call; no monitor; time
limits are ends, since it would ask the value of each last observation alone.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnvWrapper

from tests.benchmarks.peers.stepping import COPIES, SPREAD_GAMMA, SPREAD_SEGMENT, Spread

_PROCESSES = 2


class Half(gymnasium.Env):
    """Copies as one environment, whose end never comes; which rows ended stands in `info`."""

    def __init__(self) -> None:
        self._spread = Spread(COPIES // _PROCESSES)
        rows, one = self._spread.rows, self._spread.observation_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (rows, *one.shape), np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete([int(self._spread.action_space.n)] * rows)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self._spread.reset(), {}

    def step(self, action: np.ndarray) -> Any:
        observation, reward, over = self._spread.step(action)
        return observation, reward, False, False, {"over": over}


class Rows(VecEnvWrapper):
    """Each row of each process as an environment."""

    def __init__(self) -> None:
        super().__init__(SubprocVecEnv([Half] * _PROCESSES, start_method="fork"))
        rows, *shape = self.venv.observation_space.shape
        self.num_envs = rows * _PROCESSES
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)
        self.action_space = gymnasium.spaces.Discrete(int(self.venv.action_space.nvec[0]))
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]

    def reset(self) -> np.ndarray:
        return np.concatenate(self.venv.reset())

    def step_async(self, actions: np.ndarray) -> None:
        self.venv.step_async(np.split(actions, _PROCESSES))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, reward, _, infos = self.venv.step_wait()
        return (
            np.concatenate(observation),
            np.concatenate(reward),
            np.concatenate([i["over"] for i in infos]),
            self._infos,
        )


def main() -> None:
    """Trains until it is ended."""
    environment = Rows()
    batch = environment.num_envs * SPREAD_SEGMENT // 4
    sizes = {"n_steps": SPREAD_SEGMENT, "batch_size": batch, "n_epochs": 1}
    settings = {**sizes, "learning_rate": 1e-3, "gamma": SPREAD_GAMMA, "device": "cpu"}
    PPO("MlpPolicy", environment, policy_kwargs={"net_arch": [64, 64]}, **settings).learn(10**12)


if __name__ == "__main__":
    main()
