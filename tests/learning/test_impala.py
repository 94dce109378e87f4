"""IMPALA by its own name learns what PPO learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.config.run import parse_run
from tests.learning.test_recurrent import learn


@pytest.mark.slow
def test_cartpole_by_impala_soon_stands_longer(tmp_path: Path) -> None:
    """E10, E11: a random player falls after 22 steps."""
    run = parse_run(
        {
            "environment": {"id": "gymnasium:CartPole-v1", "copies": 32},
            "policy": {
                "algorithm": {"name": "impala"},
                "learning_rate": 0.003,
                "max_grad_norm": 0.5,
                "segment_length": 16,
                "publish_interval": 1,
                "sync_interval": 1,
            },
            "steps": 60_000,
        }
    )
    assert learn(run, tmp_path) > 100
