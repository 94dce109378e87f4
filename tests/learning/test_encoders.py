"""Pictures, texts and crowds are learned from, by our encoders and by a network of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from tests.flows.test_encoders import written
from tests.learning.test_recurrent import learn
from tests.trial import Trial

RIGHT = 9.0
"""Of ten; by chance 5, of four doors 2.5."""


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        pytest.param(
            {"algorithm": {"name": "ppo"}, "network": {"encoder": {"entry": "tests.flows.dots:Reader"}}},
            30_000,
            marks=pytest.mark.slow,
        ),
        pytest.param({"algorithm": {"name": "dqn"}}, 30_000, marks=pytest.mark.slow),
        pytest.param(
            {"algorithm": {"name": "impala"}, "network": {"encoder": "impala"}}, 200_000, marks=pytest.mark.slow
        ),
    ],
    ids=["own", "default of dqn", "impala"],
)
def test_the_side_of_a_dot_is_learned(policy: dict[str, Any], steps: int, tmp_path: Path, trial: Trial) -> None:
    """IMPALA makes one step of 500 rows: it takes as many more of them."""
    data = {
        "environment": {"id": "tests.flows.dots:make", "copies": 32},
        "policy": {"learning_rate": 1e-3, **policy},
        "steps": trial.steps(steps),
        "seed": trial.seed,
    }
    trial.reaches(learn(parse_run(data), tmp_path), RIGHT)


@pytest.mark.slow
def test_a_corner_is_two_choices_of_a_distribution_of_ones_own(
    tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the network of the documents, of which the second choice knows the first; by chance 2.5 are right."""
    written("aim.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    data = {
        "environment": {"id": "tests.flows.dots:make_corners", "copies": 32},
        "policy": {"network": {"entry": "aim:Aim"}, "learning_rate": 1e-3, "segment_length": 16},
        "steps": trial.steps(150_000),
        "seed": trial.seed,
    }
    trial.reaches(learn(parse_run(data), tmp_path), RIGHT)


@pytest.mark.slow
def test_a_team_learns_from_what_each_member_sees(tmp_path: Path, trial: Trial) -> None:
    """Twenty answers; by chance ten are right. QMIX came to 17.9 in as many steps (seed 0)."""
    data = {
        "environment": {"id": "tests.flows.dots:make_pair", "copies": 32, "teams": {"both": "all"}},
        "policy": {"algorithm": {"name": "vdn"}, "learning_rate": 1e-3},
        "steps": trial.steps(50_000),
        "seed": trial.seed,
    }
    trial.reaches(learn(parse_run(data), tmp_path), 2 * RIGHT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "network"),
    [("Doors", {}), ("Crowd", {"encoder": {"crowd": "entities"}})],
    ids=["text by default", "entities"],
)
def test_what_a_text_asks_for_and_a_crowd_of_any_size_adds_up_to_is_learned(
    world: str, network: dict[str, Any], tmp_path: Path, trial: Trial
) -> None:
    data = {
        "environment": {"id": f"tests.learning.questions:{world}", "copies": 32},
        "policy": {"algorithm": {"name": "ppo", "gamma": 0.9}, "learning_rate": 1e-3, "network": network},
        "steps": trial.steps(150_000),
        "seed": trial.seed,
    }
    trial.reaches(learn(parse_run(data), tmp_path), RIGHT)
