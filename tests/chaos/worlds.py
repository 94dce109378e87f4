"""The runs that are put under faults: small ones that learn something in half a minute, in each flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["WORLDS", "Goal", "configuration"]

_CARTPOLE: dict[str, Any] = {
    "environment": {"id": "gymnasium:CartPole-v1", "copies": 32},
    "policy": {
        "algorithm": {"name": "ppo", "epochs": 4, "minibatches": 4, "gamma": 0.99, "entropy_coefficient": 0.01},
        "learning_rate": 0.001,
        "max_grad_norm": 0.5,
        "publish_interval": 16,
        "sync_interval": 8,
    },
}
_HUNT: dict[str, Any] = {
    "environment": {"copies": 64, "settings": {"width": 9, "height": 9, "turns": 50}},
    "policy": {
        "algorithm": {"name": "ppo", "epochs": 1, "gamma": 0.95, "entropy_coefficient": 0.01, "minibatches": 4},
        "segment_length": 16,
        "learning_rate": 0.001,
        "max_grad_norm": 0.5,
        "publish_interval": 1,
        "sync_interval": 1,
    },
}
_REPLAY: dict[str, Any] = {
    "environment": {"copies": 16, "settings": {"width": 9, "height": 9, "turns": 50}},
    "policy": {
        "algorithm": {
            "name": "iqn",
            "batch_size": 64,
            "buffer_capacity": 20_000,
            "learning_starts": 1_000,
            "replay_ratio": 4.0,
            "anneal_learning_rate": True,
            "n_step": 3,
            "gamma": 0.95,
            "target_update": "soft",
            "target_update_freq": 4,
            "tau": 0.02,
            "quantiles": 8,
            "acting_quantiles": 8,
            "cosines": 16,
            "epsilon_decay": 0.2,
            "epsilon_min": 0.02,
        },
        "network": {"hidden": [32]},
        "segment_length": 16,
        "learning_rate": 0.001,
        "sync_interval": 8,
    },
}


@dataclass(frozen=True, slots=True)
class Goal:
    """The mean return that a run under faults has to reach: `part` of the lowest undisturbed one's, or `least`, which
    the undisturbed ones have to reach as well."""

    part: float = 0.9
    least: float | None = None


WORLDS: dict[str, tuple[dict[str, Any], int, Goal]] = {
    "cartpole": (_CARTPOLE, 600_000, Goal(least=475.0)),
    "hunt": (_HUNT, 1_000_000, Goal()),
    "hunt-drop": ({**_HUNT, "policy": {**_HUNT["policy"], "flow": "drop_oldest"}}, 4_000_000, Goal()),
    "hunt-tcp": ({**_HUNT, "transport": "tcp"}, 1_000_000, Goal()),
    "hunt-replay": (_REPLAY, 200_000, Goal()),
}
"""Name -> configuration, agent steps, and the return that has to be reached. A learner that is killed goes on from its
newest checkpoint, 2 s old at most, and steps that were trained on since are not made again; where steps are dropped, it
misses those of the seconds that it is away as well. There are enough for it to learn in the part that is left in peace.
"""


def configuration(name: str, steps: int, seed: int) -> dict[str, Any]:
    """Of a run that is to live through many deaths, and whose members are missed soon."""
    return {
        **WORLDS[name][0],
        "steps": steps,
        "seed": seed,
        "actors": 2,
        "restarts": 10_000,
        "actor_timeout": 4.0,
        "learner_timeout": 4.0,
        "monitor_period": 0.3,
        "checkpoint_interval": 2.0,
    }
