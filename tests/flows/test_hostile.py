"""The short form of `python -m tests.chaos.hostile`: hostile peers beside a run, real processes on real sockets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.attacks import ATTACKS
from tests.chaos.hostile import Besieged, audit, besiege
from tests.flows import runs


@pytest.mark.chaos
def test_hostile_peers_harm_only_themselves(
    tmp_path: Path, memory_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One attack after another on one run: nobody ends, and the books balance."""
    data = runs.paced(tmp_path, 0, pause=0.004, num_learner_processes=1)
    besieged = Besieged(tmp_path, memory_dir, data, actors=2)
    with besieged.started():
        found = besiege(besieged, [" ".join(ATTACKS)], 3.0, print, compare=False)
    assert found + audit(besieged) == [], capsys.readouterr().out


def test_segments_forged_in_a_living_actors_name_leave_the_books_exact(
    tmp_path: Path, memory_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them are refused, the actor whose name they have goes on being trained on, and nothing is unexplained."""
    besieged = Besieged(tmp_path, memory_dir, runs.paced(tmp_path, 0, pause=0.002, num_learner_processes=1), actors=1)
    with besieged.started():
        found = besiege(besieged, ["forged"], 3.0, print, compare=False)
        before = besieged.trained()
        runs.until(lambda: besieged.trained() > before, what="the actor is trained on")
    assert found + audit(besieged) == [], capsys.readouterr().out
    summary = json.loads((besieged.run_dir / "summary.json").read_text())
    assert summary["refused"]["segments"] > 0
    assert summary["segments"]["dropped"]["actor_lost"] == summary["segments"]["unexplained"] == 0
