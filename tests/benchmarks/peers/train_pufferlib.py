"""W1 or W3 (its three agents share the policy) by PufferLib's PPO, one process.

Settings that favour it: a native environment, which steps all copies in one call into PufferLib's own buffers, without
its emulation and its processes; Adam, since its default optimizer costs more; no dashboard and no checkpoints.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pufferlib
import torch
from pufferlib import pufferl, vector
from pufferlib.models import LSTMWrapper
from torch import nn

from tests.benchmarks.peers.stepping import AGENTS, COPIES, SEGMENT, SYNTHETIC_COPIES, Carts, Numbers


class NativeCarts(pufferlib.PufferEnv):
    """Gymnasium's vector environment that writes into PufferLib's buffers."""

    def __init__(self, buf: Any = None, seed: int = 0) -> None:
        self._carts = Carts()
        self.single_observation_space = self._carts.single_observation_space
        self.single_action_space = self._carts.single_action_space
        self.num_agents = COPIES
        super().__init__(buf)

    def reset(self, seed: int | None = 0) -> tuple[np.ndarray, list[Any]]:
        self.observations[:] = self._carts.reset(seed=seed)[0]
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        told = self._carts.step(actions)
        self.observations[:], self.rewards[:], self.terminals[:], self.truncations[:] = told[:4]
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        self._carts.close()


class NativeNumbers(pufferlib.PufferEnv):
    """W3's world in the same way: an agent is a row."""

    def __init__(self, buf: Any = None, seed: int = 0) -> None:
        self._numbers = Numbers()
        self.single_observation_space = gymnasium.spaces.Box(0, 8, (64,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(8)
        self.num_agents = AGENTS * SYNTHETIC_COPIES
        super().__init__(buf)

    def reset(self, seed: int | None = 0) -> tuple[np.ndarray, list[Any]]:
        self.observations[:] = self._numbers.reset()
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.observations[:], self.rewards[:], self.truncations[:] = self._numbers.step(actions)
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        """Nothing is open."""


class Towers(nn.Module):
    """64×64 for the policy and 64×64 for the value."""

    def __init__(self) -> None:
        super().__init__()
        self._policy, self._value = tower(4, 64, 2), tower(4, 64, 1)

    def forward(self, observations: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy(observations), self._value(observations)

    forward_eval = forward


class Around(nn.Module):
    """What lies around PufferLib's LSTM: nothing before it, 128×128 for the policy and for the value behind it."""

    is_continuous = False

    def __init__(self) -> None:
        super().__init__()
        self._policy, self._value = tower(128, 128, 8), tower(128, 128, 1)

    def encode_observations(self, observations: torch.Tensor, state: Any = None) -> torch.Tensor:
        return observations

    def decode_actions(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy(hidden), self._value(hidden)


def tower(inputs: int, width: int, out: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))


def main() -> None:
    """Trains until it is ended."""
    name, sys.argv = sys.argv[1], sys.argv[:1]  # its configuration reads what else is on the command line
    recurrent = name == "W3"
    environment = vector.make(NativeNumbers if recurrent else NativeCarts, backend=vector.Serial, num_envs=1)
    policy = LSTMWrapper(environment, Around(), 64, 128) if recurrent else Towers()
    policy.hidden_size = 128
    rows = environment.num_agents * SEGMENT
    config = pufferl.load_config("default")["train"]
    config |= {"env": name, "device": "cpu", "use_rnn": recurrent, "optimizer": "adam", "learning_rate": 1e-3}
    config |= {"batch_size": rows, "minibatch_size": rows // 4, "bptt_horizon": SEGMENT, "update_epochs": 1}
    config |= {"total_timesteps": 10**12, "checkpoint_interval": 10**9, "max_grad_norm": 0.5}
    pufferl.PuffeRL.print_dashboard = lambda *_, **__: None
    trainer = pufferl.PuffeRL(config, environment, policy)
    while True:
        trainer.evaluate()
        trainer.train()


if __name__ == "__main__":
    main()
