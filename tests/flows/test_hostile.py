"""The short form of `python -m tests.chaos.hostile`: hostile peers beside a run, real processes on real sockets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.attacks import ATTACKS, KEYED, SERVED
from tests.chaos.hostile import SIMULATORS, Besieged, audit, besiege
from tests.faults import kinds_in
from tests.flows import runs

SLOW_NOISE = """
import sys
import time

from protocol.clients.python import noise
from protocol.simulator.client import Simulator

act_all = Simulator.act_all


def slowly(*given):
    time.sleep(0.004)
    return act_all(*given)


Simulator.act_all = slowly
noise.main(sys.argv[1], sys.argv[2])
"""
"""A simulator of a few hundred steps a second: a run at its full speed would take the processors from its attackers."""


@pytest.mark.chaos
def test_hostile_peers_harm_only_themselves(
    tmp_path: Path, memory_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One attack after another on one run: nobody ends, and the books balance."""
    data = runs.paced(tmp_path, 0, pause=0.008, num_learner_processes=1)
    besieged = Besieged(tmp_path, memory_dir, data, actors=2)
    with besieged.started():
        attacks = " ".join(name for name in ATTACKS if name not in SERVED + KEYED)
        found = besiege(besieged, [attacks], 2.0, print, compare=False)
    assert found + audit(besieged) == [], capsys.readouterr().out


@pytest.mark.chaos
@pytest.mark.slow
def test_a_flood_of_wrong_keys_harms_nobody_and_is_counted(
    tmp_path: Path, memory_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole handshakes at all doors of a run with keys, some hundred a second."""
    data = runs.paced(tmp_path, 0, pause=0.008, num_learner_processes=1)
    besieged = Besieged(tmp_path, memory_dir, data, actors=1, keyed=True)
    with besieged.started():
        found = besiege(besieged, ["wrong_keys"], 2.0, print, compare=False)
    assert found + audit(besieged) == [], capsys.readouterr().out


@pytest.mark.chaos
def test_neither_hellos_nor_forbidden_actions_nor_forged_segments_harm_a_run_whose_actor_serves_simulators(
    tmp_path: Path, memory_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own simulators go on being served and trained on; what its masks forbid is refused by name, and so is what is
    forged in the name of the actor, of which nothing stays unexplained."""
    (tmp_path / "slow_noise.py").write_text(SLOW_NOISE)
    settings = {"command": f"{runs.PYTHON} {tmp_path}/slow_noise.py {{address}} {{name}}"}
    world = SIMULATORS["environment"] | {"settings": SIMULATORS["environment"]["settings"] | settings}
    besieged = Besieged(tmp_path, memory_dir, SIMULATORS | {"environment": world}, actors=1)
    kinds = {"segment_action_not_legal", "segment_action_outside_space", "segments_not_proven"}
    with besieged.started():
        for _ in range(5):  # on a busy machine the first rows of all come late
            found = besiege(besieged, ["hellos rows forged"], 2.0, print, compare=False)
            if found or kinds <= {*kinds_in(besieged.workers["learner"].said)}:
                break
        before = besieged.trained()
        runs.until(lambda: besieged.trained() > before, what="its simulators are trained on")
    assert found + audit(besieged) == [], capsys.readouterr().out
    assert kinds <= {*kinds_in(besieged.workers["learner"].said)}
    summary = json.loads((besieged.run_dir / "summary.json").read_text())
    assert summary["refused"]["segments"] > 0
    assert summary["segments"]["dropped"]["actor_lost"] == summary["segments"]["unexplained"] == 0
