"""W1 to W3 and W5 (whose three agents share the policy) by PufferLib's PPO.

Settings that favour it: a native environment, which steps all copies in one call into PufferLib's own buffers, without
its emulation, and without its processes where the world costs little; W2 is stepped in several; Adam, since its default
optimizer costs more; no dashboard and no checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pufferlib
import torch
from pufferlib import pufferl, vector
from pufferlib.models import LSTMWrapper
from torch import nn

from tests.benchmarks.peers.small_network import FEATURES, small_network
from tests.benchmarks.peers.stepping import (
    COPIES,
    PICTURES,
    SEGMENT,
    SPREAD_GAMMA,
    SPREAD_SEGMENT,
    Carts,
    Numbers,
    Pictures,
    Spread,
)

_WORKERS, _BATCH = 4, 2
"""Processes that step W2, and how many of them the policy answers together; those that wait spin."""


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


class NativeRows(pufferlib.PufferEnv):
    """Another world in the same way: an agent is a row."""

    def __init__(self, world: Callable[[], Spread | Numbers], buf: Any = None, seed: int = 0) -> None:
        self._world = world()
        self.single_observation_space, self.single_action_space = (
            self._world.observation_space,
            self._world.action_space,
        )
        self.num_agents = self._world.rows
        super().__init__(buf)

    def reset(self, seed: int | None = 0) -> tuple[np.ndarray, list[Any]]:
        self.observations[:] = self._world.reset()
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.observations[:], self.rewards[:], self.truncations[:] = self._world.step(actions)
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        """Nothing is open."""


class Towers(nn.Module):
    """64×64 for the policy and 64×64 for the value."""

    def __init__(self, sees: int, actions: int) -> None:
        super().__init__()
        self._policy, self._value = tower(sees, 64, actions), tower(sees, 64, 1)

    def forward(self, observations: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy(observations), self._value(observations)

    forward_eval = forward


class Around(nn.Module):
    """What lies around PufferLib's LSTM: nothing before it, 128×128 for both policy and value behind it."""

    is_continuous = False

    def __init__(self) -> None:
        super().__init__()
        *layers, policy = tower(128, 128, 8)
        self._layers, self._policy, self._value = nn.Sequential(*layers), policy, nn.Linear(128, 1)

    def encode_observations(self, observations: torch.Tensor, state: Any = None) -> torch.Tensor:
        return observations

    def decode_actions(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self._layers(hidden)
        return self._policy(seen), self._value(seen)


class Seeing(nn.Module):
    """A network of pictures, of which policy and value are a layer each."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self._network, features = (small_network(), FEATURES) if side == 10 else (large_network(), 512)
        self._policy, self._value = nn.Linear(features, 6), nn.Linear(features, 1)

    def forward(self, observations: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self._network(observations.float() / 255)
        return self._policy(seen), self._value(seen)

    forward_eval = forward


def large_network() -> nn.Sequential:
    """That of Mnih et al. 2015."""
    layers = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())


def tower(inputs: int, width: int, out: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))


def _environment(name: str) -> Any:
    if name == "W1":
        return vector.make(NativeCarts, backend=vector.Serial, num_envs=1)
    if name != "W2":
        world: Callable[[], Numbers] = partial(Pictures, name) if name in PICTURES else Numbers
        return vector.make(NativeRows, env_kwargs={"world": world}, backend=vector.Serial, num_envs=1)
    given: dict[str, Any] = {"world": partial(Spread, COPIES // _WORKERS)}
    places = {"num_envs": _WORKERS, "num_workers": _WORKERS, "batch_size": _BATCH, "overwork": True}
    return vector.make(NativeRows, env_kwargs=given, backend=vector.Multiprocessing, **places)


def main() -> None:
    """Trains until it is ended."""
    name, sys.argv = sys.argv[1], sys.argv[:1]  # its configuration reads what else is on the command line
    environment, recurrent = _environment(name), name == "W3"
    sees, actions = environment.single_observation_space.shape[0], environment.single_action_space.n
    policy: Any
    if name in PICTURES:
        policy = Seeing(PICTURES[name][0])
    else:
        policy = LSTMWrapper(environment, Around(), 64, 128) if recurrent else Towers(sees, actions)
    policy.hidden_size = 128
    segment = SPREAD_SEGMENT if name == "W2" else SEGMENT
    rows = environment.num_agents * segment
    config = pufferl.load_config("default")["train"]
    config |= {"env": name, "device": "cpu", "use_rnn": recurrent, "optimizer": "adam", "learning_rate": 1e-3}
    config |= {"batch_size": rows, "minibatch_size": rows // 4, "bptt_horizon": segment}
    config["update_epochs"] = 2 if name in PICTURES else 1
    config["gamma"] = SPREAD_GAMMA if name == "W2" else 0.99
    config |= {"total_timesteps": 10**12, "checkpoint_interval": 10**9, "max_grad_norm": 0.5}
    pufferl.PuffeRL.print_dashboard = lambda *_, **__: None
    trainer = pufferl.PuffeRL(config, environment, policy)
    while True:
        trainer.evaluate()
        trainer.train()


if __name__ == "__main__":
    main()
