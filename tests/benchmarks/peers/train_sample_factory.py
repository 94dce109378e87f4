"""W1 to W3 and W5 by Sample Factory's PPO; where there are three agents, they share the policy or have one each.

Settings that favour it on two cores: see `_places`; no normalisation, no summaries, no checkpoints; in W3 policy and
value share the LSTM and the layers behind it, in W5 all but the last layer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from sample_factory.algo.sampling import non_batched_sampling
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import run_rl

from tests.benchmarks.peers.small_network import FEATURES, small_network
from tests.benchmarks.peers.stepping import (
    AGENTS,
    COPIES,
    PICTURES,
    SEGMENT,
    SPREAD_GAMMA,
    SPREAD_SEGMENT,
    SYNTHETIC_COPIES,
    Carts,
    Numbers,
    Pictures,
    Spread,
)

_WORLDS: dict[str, Callable[[int], Spread | Numbers]] = {
    "W2": Spread,
    "W3": Numbers,
    **{name: partial(Pictures, name) for name in PICTURES},
}
_COPIES = {
    "W1": COPIES,
    "W2": COPIES,
    "W3": SYNTHETIC_COPIES,
    **{name: copies for name, (_, copies, _) in PICTURES.items()},
}
_AGENTS = {"W1": 1, "W2": AGENTS, "W3": AGENTS, **{name: agents for name, (_, _, agents) in PICTURES.items()}}


class BatchedCarts(gymnasium.Env):
    """Gymnasium's vector environment as one whose agents are its copies."""

    def __init__(self) -> None:
        self._carts = Carts(COPIES)
        self.observation_space = self._carts.single_observation_space
        self.action_space = self._carts.single_action_space
        self.num_agents, self.is_multiagent = COPIES, True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self._carts.reset(seed=seed)[0], {}

    def step(self, action: np.ndarray) -> Any:
        return self._carts.step(action)


class Rows(gymnasium.Env):
    """Copies of another world as one whose agents are its rows."""

    def __init__(self, name: str, copies: int) -> None:
        self._world = _WORLDS[name](copies)
        self.observation_space, self.action_space = self._world.observation_space, self._world.action_space
        self.num_agents, self.is_multiagent = self._world.rows, True
        self._never = np.zeros(self._world.rows, np.bool_)
        self._infos: list[dict[str, Any]] = [{} for _ in range(self._world.rows)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        return self._world.reset(), self._infos

    def step(self, action: Any) -> Any:
        observation, reward, over = self._world.step(np.asarray(action))
        return observation, reward, self._never, over, self._infos


class OneEach:
    """Sample Factory's mapping, which it lets nobody choose: in each copy an agent has the policy of its number."""

    def __init__(self, cfg: Any, env_info: Any) -> None:
        """As it is made."""

    def get_policy_for_agent(self, agent_idx: int, env_idx: int, global_env_idx: int) -> int:
        return agent_idx


class Small(Encoder):
    """For pictures that its own networks are too large for."""

    def __init__(self, cfg: Any, obs_space: Any) -> None:
        super().__init__(cfg)
        self._network = small_network()

    def forward(self, obs_dict: Any) -> torch.Tensor:
        return self._network(obs_dict["obs"])

    def get_out_size(self) -> int:
        return FEATURES


# at import, so that the processes which Sample Factory spawns have it too
non_batched_sampling.AgentPolicyMapping = OneEach


def _make(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gymnasium.Env:
    return BatchedCarts() if name == "W1" else Rows(name, _COPIES[name] // cfg.num_workers // cfg.num_envs_per_worker)


def _settings(name: str, policies: int, folder: str) -> dict[str, object]:
    rollout = SPREAD_SEGMENT if name == "W2" else SEGMENT
    rows, seeing = rollout * _COPIES[name] * (_AGENTS[name] if policies == 1 else 1), name in PICTURES
    sizes = {"rollout": rollout, "batch_size": rows // 4, "num_batches_per_epoch": 4, "num_epochs": 2 if seeing else 1}
    learning: dict[str, object] = {"learning_rate": 1e-3, "max_grad_norm": 0.5, "num_policies": policies}
    learning |= {"nonlinearity": "relu", "obs_scale": 255.0} if seeing else {"nonlinearity": "tanh"}
    learning["gamma"] = SPREAD_GAMMA if name == "W2" else 0.99
    quiet = {"save_every_sec": 10**6, "experiment_summaries_interval": 10**6, "train_for_env_steps": 10**12}
    left_out = (
        "normalize_input",
        "normalize_returns",
        "decorrelate_envs_on_one_worker",
        "set_workers_cpu_affinity",
        "env_gpu_actions",
        "env_gpu_observations",
    )
    run = {"env": name, "experiment": "peer", "train_dir": folder, "use_env_info_cache": False, "device": "cpu"}
    return {**run, **sizes, **_places(name, policies), **learning, **quiet, **dict.fromkeys(left_out, False)}


def _places(name: str, policies: int) -> dict[str, object]:
    """Which processes sample, and how. All carts step in one call, in the process that learns; two processes act and
    step in W2 and W3, where that costs more. Policies of their own need sampling that looks at each agent alone."""
    apart, batched = name != "W1", policies == 1
    workers = 2 if apart else 1
    sampling = {"num_workers": workers, "num_envs_per_worker": 1 if batched else _COPIES[name] // workers}
    places = {"batched_sampling": batched, "worker_num_splits": 1, "serial_mode": not apart, "async_rl": apart}
    urgency = {"default_niceness": os.nice(0) - 10}  # its workers add 10: as urgent as who started them, and no less
    return {**sampling, **places, **urgency}


def main() -> None:
    """Trains until it is ended."""
    name, policies = sys.argv[1], int(sys.argv[2])
    if name in PICTURES:
        shape = {"use_rnn": False, "actor_critic_share_weights": True, "encoder_conv_architecture": "convnet_atari"}
        layers = ["--decoder_mlp_layers"]
        if PICTURES[name][0] == 10:
            global_model_factory().register_encoder_factory(Small)
    elif name == "W3":
        shape = {"use_rnn": True, "rnn_type": "lstm", "rnn_size": 128, "actor_critic_share_weights": True}
        layers = ["--encoder_mlp_layers", "--decoder_mlp_layers", "128", "128"]
    else:
        shape = {"use_rnn": False, "actor_critic_share_weights": False}
        layers = ["--encoder_mlp_layers", "64", "64"]
    register_env(name, _make)
    with tempfile.TemporaryDirectory() as folder:
        given = [f"--{key}={value}" for key, value in {**_settings(name, policies, folder), **shape}.items()] + layers
        parser, _ = parse_sf_args(given)
        run_rl(parse_full_cfg(parser, given))


if __name__ == "__main__":
    main()
