"""From hyperparameters as other libraries write them to ours: the tables of launch/docs/moving, executed. Pure.

In flow: the keys of a library's published configuration. Out flow: keys of our configuration. A key that nobody knows
is an error, so that nothing is lost in silence; what has no equivalent here is a rule that gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protocol.config.base import known_as
from protocol.config.run import Run

__all__ = ["LIBRARIES", "merged", "translate"]

Keys = Mapping[str, Any]
Rule = Callable[[Any, Keys], dict[str, Any]]
"""A value, and all keys of its configuration -> ours, with dots."""
ALGORITHM = "policy.algorithm."
UNCLIPPED = 1e9


def same(*names: str) -> Rule:
    """The value as it is, under our names."""
    return lambda value, _: dict.fromkeys(names, value)


def nothing(_value: Any, _keys: Keys) -> dict[str, Any]:
    """What has no equivalent here, or is read where another key needs it."""
    return {}


def schedule(name: str) -> Rule:
    """`lin_0.001` falls to 0 by the end of the run: a rate's is annealed here, other values stay as they begin."""

    def rule(value: Any, _: Keys) -> dict[str, Any]:
        linear = isinstance(value, str)
        start = float(value.removeprefix("lin_")) if linear else value
        return {name: start} | ({ALGORITHM + "anneal_learning_rate": linear} if name.endswith("learning_rate") else {})

    return rule


def target_step(tau: float, _: Keys) -> dict[str, Any]:
    """A step of 1 is a copy."""
    return {ALGORITHM + "target_update": "hard"} if tau == 1 else {ALGORITHM + "tau": tau}


def updates_per_step(keys: Keys) -> float:
    """Stable-Baselines3's, for each step of all environments; -1 gradient steps are as many as were made steps."""
    return 1.0 if keys["gradient_steps"] == -1 else keys["gradient_steps"] / keys["train_freq"]


def sb3_rollout(steps: int, keys: Keys) -> dict[str, Any]:
    """Of each environment; minibatches of who remembers are whole segments here."""
    length = min(steps, keys["batch_size"]) if "lstm_hidden_size" in keys else steps
    return {"policy.segment_length": length, ALGORITHM + "segments": steps * keys["n_envs"] // length}


def sb3_target(interval: int, keys: Keys) -> dict[str, Any]:
    """Counted in steps there, and looked at between two bursts of updates only."""
    steps = max(interval, keys["train_freq"])
    return {ALGORITHM + "target_update_freq": max(1, round(steps * updates_per_step(keys)))}


LIBRARIES: dict[str, dict[str, Rule]] = {
    "cleanrl": {
        # on policy
        "update_epochs": lambda epochs, keys: {
            ALGORITHM + "epochs": epochs,
            "policy.publish_interval": epochs * keys["num_minibatches"],  # once a batch
        },
        "clip_vloss": lambda clipped, keys: {ALGORITHM + "value_clip": keys["clip_coef"] if clipped else None},
        "target_kl": nothing,
        # on replay
        "batch_size": same(ALGORITHM + "batch_size"),
        "train_frequency": lambda steps, keys: {
            ALGORITHM + "replay_ratio": keys["batch_size"] / (steps * keys["num_envs"]),
            "policy.segment_length": steps,
            "policy.sync_interval": steps,
        },
        "tau": target_step,
        "target_network_frequency": lambda steps, keys: {
            ALGORITHM + "target_update_freq": round(steps / keys["train_frequency"])
        },
    },
    "stable-baselines3": {
        "learning_rate": schedule("policy.learning_rate"),
        # on policy
        "normalize": same(ALGORITHM + "normalize_observation", ALGORITHM + "normalize_return"),
        "n_steps": sb3_rollout,
        "n_epochs": lambda epochs, keys: {
            ALGORITHM + "epochs": epochs,
            ALGORITHM + "minibatches": keys["n_steps"] * keys["n_envs"] // keys["batch_size"],
            "policy.publish_interval": epochs * keys["n_steps"] * keys["n_envs"] // keys["batch_size"],
        },
        "clip_range": schedule(ALGORITHM + "clip"),
        "ent_coef": lambda value, _: {} if value == "auto" else {ALGORITHM + "entropy_coefficient": value},
        "vf_coef": lambda value, _: {ALGORITHM + "value_coefficient": 2 * value},  # of the square; of half of it here
        "use_sde": nothing,
        "sde_sample_freq": nothing,
        "lstm_hidden_size": lambda size, _: {"policy.network.core": {"name": "lstm", "size": size}},
        # on replay
        "batch_size": lambda size, keys: {ALGORITHM + "batch_size": size} if "train_freq" in keys else {},
        "train_freq": lambda steps, keys: {
            ALGORITHM + "replay_ratio": keys["batch_size"] * updates_per_step(keys) / keys["n_envs"],
            "policy.segment_length": max(8, steps),
            "policy.sync_interval": steps,
        },
        "gradient_steps": nothing,
        "learning_starts": lambda rows, _: {ALGORITHM + "learning_starts": max(1, rows)},
        "tau": target_step,
        "target_update_interval": sb3_target,
    },
    "rllib": {
        "default_timesteps": same("steps"),
        "train_batch_size_per_learner": lambda rows, keys: {
            ALGORITHM + "segments": rows // keys["rollout_fragment_length"]
        },
    },
    "epymarl": {
        "episode_limit": same("policy.segment_length"),
        "hidden_dim": lambda units, _: {"policy.network.hidden": [units, units]},
        "use_rnn": nothing,
        "standardise_rewards": nothing,
        # episodes there, rows here; one update for each episode
        "buffer_size": lambda episodes, keys: {ALGORITHM + "buffer_capacity": episodes * keys["episode_limit"]},
        "batch_size": lambda episodes, keys: {
            ALGORITHM + "batch_size": episodes * keys["episode_limit"],
            ALGORITHM + "replay_ratio": float(episodes),
            ALGORITHM + "learning_starts": episodes * keys["episode_limit"],
        },
        "target_update_interval_or_tau": same(ALGORITHM + "target_update_freq"),
    },
    "gymnax-blines": {
        "num_train_steps": same("steps"),
        "num_train_envs": same("environment.copies"),
        "n_steps": same("policy.segment_length"),
        "n_minibatch": same(ALGORITHM + "minibatches"),
        "epoch_ppo": lambda epochs, keys: {
            ALGORITHM + "epochs": epochs,
            "policy.publish_interval": epochs * keys["n_minibatch"],  # once a batch
        },
        "lr_begin": same("policy.learning_rate"),
        "lr_end": lambda rate, keys: {ALGORITHM + "anneal_learning_rate": rate < keys["lr_begin"]},
        "lr_warmup": nothing,
        "clip_eps": same(ALGORITHM + "clip", ALGORITHM + "value_clip"),
        "critic_coeff": same(ALGORITHM + "value_coefficient"),
        "num_hidden_units": lambda units, keys: {"policy.network.hidden": [units] * keys["num_hidden_layers"]},
        "num_hidden_layers": nothing,
        "flatten_3d": lambda flat, _: {"policy.network.encoder": "mlp"} if flat else {},
    },
    "minatar": {
        "BATCH_SIZE": same(ALGORITHM + "batch_size"),
        "REPLAY_BUFFER_SIZE": same(ALGORITHM + "buffer_capacity"),
        "TARGET_NETWORK_UPDATE_FREQ": same(ALGORITHM + "target_update_freq"),
        "TRAINING_FREQ": lambda steps, keys: {ALGORITHM + "replay_ratio": keys["BATCH_SIZE"] / steps},
        "NUM_FRAMES": same("steps"),
        "FIRST_N_FRAMES": same(ALGORITHM + "exploration_steps"),
        "REPLAY_START_SIZE": same(ALGORITHM + "learning_starts"),
        "EPSILON": same(ALGORITHM + "epsilon"),
        "END_EPSILON": same(ALGORITHM + "epsilon_min"),
        "STEP_SIZE": same("policy.learning_rate"),
        "GAMMA": same(ALGORITHM + "gamma"),
        **dict.fromkeys(("GRAD_MOMENTUM", "SQUARED_GRAD_MOMENTUM", "MIN_SQUARED_GRAD"), nothing),  # RMSprop's
    },
}
"""Keys whose value is another one here, by library; others are called as `known_as` says."""

_SB3_REPLAY = {"n_envs": 1, "train_freq": 1, "gradient_steps": 1, "gamma": 0.99, "learning_starts": 100}
_SB3_PPO = {
    "learning_rate": 3e-4,
    "n_envs": 1,
    "n_steps": 2048,
    "batch_size": 64,
    "n_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "normalize": False,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "net_arch": [64, 64],
}
DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("stable-baselines3", "ppo"): _SB3_PPO,
    ("stable-baselines3", "dqn"): {
        **_SB3_REPLAY,
        "learning_rate": 1e-4,
        "buffer_size": 1_000_000,
        "batch_size": 32,
        "tau": 1.0,
        "train_freq": 4,
        "target_update_interval": 10_000,
        "exploration_fraction": 0.1,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.05,
        "max_grad_norm": 10,
        "net_arch": [64, 64],
    },
    ("stable-baselines3", "sac"): {
        **_SB3_REPLAY,
        "learning_rate": 3e-4,
        "buffer_size": 1_000_000,
        "batch_size": 256,
        "tau": 0.005,
        "ent_coef": "auto",
        "net_arch": [256, 256],
    },
    ("rllib", "impala"): {"num_env_runners": 2, "num_envs_per_env_runner": 1, "broadcast_interval": 1},
}
"""What a library takes where a published configuration is silent."""
_PLAIN = {"n_step": 1, "double": False, "kappa": None}
_IN_TURN = {"schedule": "lockstep", "act_block": 4, "policy.sync_interval": 1}
"""Acting and learning wait for each other."""
_RAW = {ALGORITHM + "normalize_observation": False, ALGORITHM + "normalize_return": False}
_CLEANRL_DQN = {"policy.network.hidden": [120, 84], "policy.network.activation": "relu", "policy.publish_interval": 1}
_EPYMARL = {
    "environment.copies": 1,
    "policy.network.activation": "relu",
    "policy.publish_interval": 1,
    "policy.sync_interval": 25,
    ALGORITHM + "n_step": 1,
}
FIXED: dict[tuple[str, str], dict[str, Any]] = {
    ("cleanrl", "ppo"): {**_IN_TURN, **_RAW},
    ("cleanrl", "dqn"): {
        **_CLEANRL_DQN,
        "policy.max_grad_norm": UNCLIPPED,
        **{ALGORITHM + key: value for key, value in _PLAIN.items()},
    },
    ("cleanrl", "c51"): {
        **_CLEANRL_DQN,
        "policy.max_grad_norm": UNCLIPPED,
        ALGORITHM + "n_step": 1,
        ALGORITHM + "double": False,
    },
    ("stable-baselines3", "ppo"): _IN_TURN,
    ("stable-baselines3", "dqn"): {
        "policy.network.activation": "relu",
        "policy.publish_interval": 1,
        ALGORITHM + "n_step": 1,
        ALGORITHM + "double": False,
        ALGORITHM + "kappa": 1.0,
    },
    ("stable-baselines3", "sac"): {
        "policy.network.activation": "relu",
        "policy.publish_interval": 1,
        "policy.max_grad_norm": UNCLIPPED,
    },
    ("rllib", "impala"): {
        "policy.sync_interval": 1,
        **_RAW,
        ALGORITHM + "anneal_learning_rate": False,
    },
    ("gymnax-blines", "ppo"): {
        **_IN_TURN,
        "policy.network.activation": "relu",
        **_RAW,
    },
    ("minatar", "dqn"): {
        "environment.copies": 1,
        "policy.network.encoder": {"entry": "tests.returns.minatar_network:MinAtarNetwork"},
        "policy.network.hidden": [],
        "policy.network.activation": "relu",
        "policy.publish_interval": 1,
        "policy.sync_interval": 1,
        "policy.max_grad_norm": UNCLIPPED,
        **{ALGORITHM + key: value for key, value in _PLAIN.items()},
        ALGORITHM + "kappa": 1.0,
    },
    ("epymarl", "dqn"): _EPYMARL,
    ("epymarl", "vdn"): _EPYMARL,
    ("epymarl", "qmix"): {**_EPYMARL, ALGORITHM + "mixing": 32},
}
"""What a library does and has no key for."""


def translate(library: str, algorithm: str, published: Keys) -> dict[str, Any]:
    """The part of our configuration that `published` says; KeyError where a key is unknown."""
    keys = {**DEFAULTS.get((library, algorithm), {}), **published}
    flat = dict(FIXED[library, algorithm])
    for name, value in keys.items():
        flat |= _rule(library, name)(value, keys)
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        nested = merged(nested, value)
    return nested


def _rule(library: str, name: str) -> Rule:
    if name in LIBRARIES[library]:
        return LIBRARIES[library][name]
    ours, otherwise = known_as(name, Run)
    if not ours or otherwise:
        raise KeyError(f"{name} of {library}")
    return same(ours)


def merged(one: Keys, other: Keys) -> dict[str, Any]:
    """Both mappings, one key below another; `other`'s where both have a value."""
    result = dict(one)
    for key, value in other.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result
