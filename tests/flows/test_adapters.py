"""Whole runs of others' environments whose spaces are no box and no single choice, or whose choices may be illegal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows import runs

BLACKJACK = "gymnasium:Blackjack-v1"
SPREAD = "pettingzoo:mpe2.simple_spread_v3"
TICTACTOE = "pettingzoo:pettingzoo.classic.tictactoe_v3"


@pytest.mark.parametrize(
    ("id", "settings", "processes"),
    [
        pytest.param(TICTACTOE, {}, 0, marks=pytest.mark.slow),
        ("tests.flows.tokens:make", {}, 0),
        pytest.param(SPREAD, {"continuous_actions": True}, 2, marks=pytest.mark.slow),
        pytest.param(BLACKJACK, {}, 0, marks=pytest.mark.slow),
    ],
)
def test_environments_of_others_with_any_spaces_are_trained_to_the_last_segment_I1_I5(
    tmp_path: Path, memory_dir: Path, id: str, settings: dict[str, Any], processes: int
) -> None:
    """I1 I5: masks in turns, numbers stepped by processes, choices in a tuple, agents called by numbers."""
    environment = {"id": id, "copies": 4, "settings": settings, "processes": processes}
    result = runs.train(runs.config(steps=3_000, environment=environment), tmp_path)
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert min(summary["train_steps"].values()) > 0
    assert runs.balanced(summary["segments"]), summary["segments"]
    if id.startswith("tests."):
        assert [*summary["train_steps"]] == ["0", "1", "2"]
    if id == TICTACTOE:
        ends = [one["last"] for one in summary["returns"].values()]
        assert sum(ends) == pytest.approx(0, abs=0.3), "an illegal move would cost one player, and reward nobody"
    assert runs.files(memory_dir) == []
