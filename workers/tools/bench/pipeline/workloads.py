"""The workloads on which the whole pipeline is measured, as configurations of runs; peers get the same definitions.

W1 to W3 learn with one epoch of four minibatches in float32, from at most 256 copies whose actors wait for credit, with
a policy for each agent. W4 are two presets with what they set. W5 are pictures, two epochs: Atari's size and network,
MinAtar's size, and the same for three agents with a policy each.
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


def _ppo(
    environment: dict[str, Any], segment_length: int, *, gamma: float = 0.99, epochs: int = 1, **network: Any
) -> dict[str, Any]:
    algorithm = {"name": "ppo", "epochs": epochs, "minibatches": 4, "gamma": gamma, "normalize_observation": False}
    policy = {
        "algorithm": algorithm,
        "network": network,
        "segment_length": segment_length,
        "learning_rate": 0.001,
        "max_grad_norm": 0.5,
        "publish_interval": 4 * epochs,
        "sync_interval": 1,
    }
    return {"environment": environment, "policy": policy, "learners": "cohort"}


def _pictures(side: int, copies: int, agents: int) -> dict[str, Any]:
    settings = {"agents": agents, "image": [side, side, 4], "actions": 6, "episode_steps": 1000}
    return _ppo({"id": "synthetic", "copies": copies, "settings": settings}, 64, epochs=2, hidden=[])


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
    "W5-84": _pictures(84, copies=32, agents=1),
    "W5-10": _pictures(10, copies=128, agents=1),
    "W5-10-three": _pictures(10, copies=64, agents=3),
}
PRESETS = {"W4": "treasure-hunt", "W4-iqn": "treasure-hunt-iqn"}
WORKLOADS = (*_MADE, *PRESETS)


def workload(name: str, environment: Mapping[str, Any]) -> tuple[dict[str, Any], Run]:
    """The configuration of workload `name`, whose run does not end by itself, as it is written and as it is read.
    `environment`: keys put over its own."""
    data = read_mapping(_FOLDER / f"{PRESETS[name]}.yaml") if name in PRESETS else copy.deepcopy(_MADE[name])
    data["environment"] |= environment
    if name in _MADE:  # a segment of each copy
        data["policy"]["algorithm"]["segments"] = data.get("actors", 1) * data["environment"]["copies"]
    data["steps"] = _ENDLESS
    return data, parse_run(data)
