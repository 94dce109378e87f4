"""What a policy gains by starting from a clone of a player that knows the game."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from launch.config_loader import load
from tests.learning.greedy import make_run
from workers.environments.registry import make
from workers.rollout.acting_policy import ActingPolicy
from workers.runtime.process import keep_config

RADIUS = 5
WORLD = [
    *("environment.copies=64", "environment.settings.width=11", "environment.settings.height=11"),
    *(f"environment.settings.radius={RADIUS}", "baseline_episodes=0"),
]
"""All of the field is in view, so that what the scripted player does follows from what it sees now."""


def made(folder: Path, steps: int, *keys: str, seed: int = 0) -> dict[str, Any]:
    """The summary of a run in this process."""
    run = load("treasure-hunt", [*WORLD, *keys], steps=steps, seed=seed)
    folder.mkdir()
    keep_config(run, folder)
    make_run(run, folder)
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def scripted(folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The summary of a run that records what the world's scripted player does in the policies' stead."""
    players: dict[ActingPolicy, Any] = {}
    where = load("treasure-hunt", WORLD).environment

    def act(policy: ActingPolicy, observation: NDArray, *_: Any, **__: Any) -> dict[str, NDArray]:
        n = len(observation)
        if policy not in players:
            players[policy] = make(where).scripted()
        seen = observation.reshape(n, 6, 2 * RADIUS + 1, -1).astype(np.uint8)
        action = players[policy](SimpleNamespace(agent=0, copies=None, observation=seen))
        return {"action": action, **dict.fromkeys(("log_probability", "value"), np.zeros(n, np.float32))}

    with monkeypatch.context() as patch:
        patch.setattr(ActingPolicy, "act", act)
        return made(folder, steps, "policy.record=true")


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("as_a_worker")
def test_ppo_from_a_clone_earns_what_the_scripted_player_does_in_a_third_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Than from nothing; five seeds, each of both."""
    earned = scripted(tmp_path / "scripted", 500_000, monkeypatch)["returns"]
    known = min(policy["last"] for policy in earned.values())
    dataset = f"policy.dataset.path={tmp_path / 'scripted' / 'datasets'}"
    cloning = ("actors=0", "policy.algorithm=bc", "policy.learning_rate=0.001", dataset)
    made(tmp_path / "clone", 3_000_000, *cloning)
    start = f"policy.start={tmp_path / 'clone'}"
    for seed in range(5):
        needed = [
            made(tmp_path / f"{name}-{seed}", 12_000_000, f"target_return={known}", *keys, seed=seed)["agent_steps"]
            for name, keys in (("from-clone", [start]), ("from-nothing", []))
        ]
        assert needed[1] < 12_000_000
        assert needed[0] <= needed[1] / 3, needed
