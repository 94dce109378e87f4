"""W1 or W3 (its three agents share the policy) by Sample Factory's PPO.

Settings that favour it on two cores: its serial mode, one process that samples and learns in turn (its processes made
half as many steps with twice the memory); batched sampling, so that all copies step in one call; no normalisation, no
summaries, no checkpoints; in W3 policy and value share the LSTM and the layers behind it.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import gymnasium
import numpy as np
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl

from tests.benchmarks.peers.stepping import AGENTS, COPIES, SEGMENT, SYNTHETIC_COPIES, Carts, Numbers


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


class BatchedNumbers(gymnasium.Env):
    """W3's world in the same way."""

    def __init__(self) -> None:
        self._numbers = Numbers(SYNTHETIC_COPIES)
        self.observation_space = gymnasium.spaces.Box(0, 8, (64,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(8)
        self.num_agents, self.is_multiagent = self._numbers.rows, True
        self._never = np.zeros(self._numbers.rows, np.bool_)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self._numbers.reset(), {}

    def step(self, action: np.ndarray) -> Any:
        observation, reward, over = self._numbers.step(action)
        return observation, reward, self._never, over, {}


def _make(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gymnasium.Env:
    return BatchedNumbers() if name == "W3" else BatchedCarts()


def _settings(name: str, folder: str) -> dict[str, object]:
    rows = SEGMENT * (AGENTS * SYNTHETIC_COPIES if name == "W3" else COPIES)
    sizes = {"rollout": SEGMENT, "batch_size": rows // 4, "num_batches_per_epoch": 4, "num_epochs": 1}
    sampling = {"batched_sampling": True, "num_workers": 1, "num_envs_per_worker": 1, "worker_num_splits": 1}
    places = {"serial_mode": True, "async_rl": False, "device": "cpu"}
    learning = {"learning_rate": 1e-3, "max_grad_norm": 0.5, "nonlinearity": "tanh"}
    quiet = {"save_every_sec": 10**6, "experiment_summaries_interval": 10**6, "train_for_env_steps": 10**12}
    left_out = (
        "normalize_input",
        "normalize_returns",
        "decorrelate_envs_on_one_worker",
        "set_workers_cpu_affinity",
        "env_gpu_actions",
        "env_gpu_observations",
    )
    run = {"env": name, "experiment": "peer", "train_dir": folder, "use_env_info_cache": False}
    return {**run, **sizes, **sampling, **learning, **places, **quiet, **dict.fromkeys(left_out, False)}


def main() -> None:
    """Trains until it is ended."""
    name = sys.argv[1]
    if name == "W3":
        shape = {"use_rnn": True, "rnn_type": "lstm", "rnn_size": 128, "actor_critic_share_weights": True}
        layers = ["--encoder_mlp_layers", "--decoder_mlp_layers", "128", "128"]
    else:
        shape = {"use_rnn": False, "actor_critic_share_weights": False}
        layers = ["--encoder_mlp_layers", "64", "64"]
    register_env(name, _make)
    with tempfile.TemporaryDirectory() as folder:
        given = [f"--{key}={value}" for key, value in {**_settings(name, folder), **shape}.items()] + layers
        parser, _ = parse_sf_args(given)
        run_rl(parse_full_cfg(parser, given))


if __name__ == "__main__":
    main()
