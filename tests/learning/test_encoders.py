"""Pictures are learned from, by a network of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from tests.learning.test_recurrent import learn
from tests.trial import Trial

RIGHT = 9.0
"""Of ten; by chance 5."""


@pytest.mark.parametrize(
    "policy",
    [
        {"algorithm": {"name": "ppo"}, "network": {"encoder": {"entry": "tests.flows.dots:Reader"}}},
        pytest.param({"algorithm": {"name": "dqn"}}, marks=pytest.mark.slow),
        pytest.param({"algorithm": {"name": "impala"}, "network": {"encoder": "impala"}}, marks=pytest.mark.slow),
    ],
    ids=["own", "default of dqn", "impala"],
)
def test_the_side_of_a_dot_is_learned(policy: dict[str, Any], tmp_path: Path, trial: Trial) -> None:
    data = {
        "environment": {"id": "tests.flows.dots:make", "copies": 32},
        "policy": {"learning_rate": 1e-3, **policy},
        "steps": trial.steps(30_000),
        "seed": trial.seed,
    }
    trial.reaches(learn(parse_run(data), tmp_path), RIGHT)
