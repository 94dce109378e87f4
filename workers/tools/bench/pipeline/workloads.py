"""The workloads on which the whole pipeline is measured, as configurations of runs; peers get the same definitions.

W1 to W3 learn with one epoch of four minibatches in float32, from at most 256 copies whose actors wait for credit, with
a policy for each agent. W4 are two presets with what they set.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.config.run import Run, parse_run
from protocol.config.yaml_file import read_mapping

_ENDLESS = 10**12
"""Steps: who measures ends the run."""
_FOLDER = Path(__file__).parents[4] / "launch" / "presets"
_SPREAD = {"id": "pettingzoo:mpe2.simple_spread_v3", "copies": 128}
_SYNTHETIC = {
    "id": "synthetic",
    "copies": 128,
    "settings": {"agents": 3, "observation": 64, "actions": 8, "episode_steps": 1000},
}


def _ppo(environment: dict[str, Any], segment_length: int, *, gamma: float = 0.99, **network: Any) -> dict[str, Any]:
    policy = {
        "algorithm": {"name": "ppo", "epochs": 1, "minibatches": 4, "gamma": gamma, "normalize_observation": False},
        "network": network,
        "segment_length": segment_length,
        "learning_rate": 0.001,
        "max_grad_norm": 0.5,
        "publish_interval": 4,
        "sync_interval": 1,
    }
    return {"environment": environment, "policy": policy, "learners": "cohort"}


# W2's episodes end after 25 steps, of which gamma 0.95 counts 20
# all policies share a learner; a world that costs more than learning gets two actors, one that costs less two learners
_MADE: dict[str, dict[str, Any]] = {
    "W1": _ppo({"id": "gymnasium:CartPole-v1", "copies": 256}, 64, hidden=[64, 64]),
    "W2": {**_ppo(_SPREAD, 25, gamma=0.95, hidden=[64, 64]), "actors": 2},
    "W3": {
        **_ppo(_SYNTHETIC, 64, hidden=[128, 128], share_layers=True, core={"name": "lstm", "size": 128}),
        "num_learner_processes": 2,
    },
    "W3-lite": _ppo(_SYNTHETIC, 64, hidden=[32, 32]),
}
PRESETS = {"W4": "treasure-hunt", "W4-iqn": "treasure-hunt-iqn"}
WORKLOADS = (*_MADE, *PRESETS)


def workload(name: str, environment: Mapping[str, Any]) -> tuple[dict[str, Any], Run]:
    """The configuration of workload `name`, whose run does not end by itself, as it is written and as it is read.
    `environment`: keys put over its own."""
    data = read_mapping(_FOLDER / f"{PRESETS[name]}.yaml") if name in PRESETS else copy.deepcopy(_MADE[name])
    data["environment"] |= environment
    data["steps"] = _ENDLESS
    return data, parse_run(data)
