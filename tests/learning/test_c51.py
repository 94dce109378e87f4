"""C51 learns what IQN learns, with double, dueling, priorities and n steps together."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.config.run import parse_run
from tests.learning.test_recurrent import learn


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_cartpole_by_c51_soon_stands_longer(tmp_path: Path) -> None:
    """E10: a random player falls after 22 steps. In short: tests/workers/algorithms/test_c51.py learns a chain."""
    algorithm = {
        "name": "c51",
        "v_min": 0.0,
        "v_max": 100.0,
        "batch_size": 128,
        "buffer_capacity": 50_000,
        "replay_ratio": 8.0,
        "dueling": True,
        "priority_alpha": 0.6,
        "target_update": "hard",
        "target_update_freq": 50,
        "epsilon_decay_freq": 10,
        "epsilon_decay": 0.05,
    }
    run = parse_run(
        {
            "environment": {"id": "gymnasium:CartPole-v1", "copies": 8},
            "policy": {"algorithm": algorithm, "segment_length": 8, "learning_rate": 0.001, "sync_interval": 4},
            "steps": 25_000,
        }
    )
    assert learn(run, tmp_path) > 150
