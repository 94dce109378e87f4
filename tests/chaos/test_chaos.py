"""The short form of `make chaos`, and what shows that its eyes are open."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import clocks
from tests.chaos.audit import audit_books, audit_notes, audit_returns
from tests.chaos.ground import ground
from tests.chaos.kit import audit
from tests.chaos.lasting import Lasting
from tests.chaos.plan import faults
from tests.chaos.scene import Scene
from tests.chaos.worlds import Goal
from tests.flows import runs
from tests.tools import ROOT

STEPS = 2_400


@pytest.mark.chaos
@pytest.mark.parametrize("seed", ["1294", *(pytest.param(seed, marks=pytest.mark.slow) for seed in ("15", "1334"))])
def test_the_books_of_a_run_balance_whatever_is_done_to_it_G1_G2_G9_B11(seed: str) -> None:
    """G1, G2, G9, B11, U14: nothing acknowledged is lost, nothing is trained twice or left behind."""
    with ground() as place:
        data = {
            **runs.paced(place.folder, STEPS, pause=0.008, restarts=100, num_learner_processes=1),
            "actor_timeout": 3.0,
            "learner_timeout": 3.0,
            "checkpoint_interval": 1.0,
        }
        scene = Scene(place, data, uuid.uuid4().hex, print)
        kinds = ["kill", "stop", "clock", *({"full_disk"} & {*place.kinds}), "truncate"]
        scene.live(islice(faults(seed, kinds, longest=1.5), 3))
        found, summary = audit(scene, STEPS)
    assert found == []
    assert sum(scene.thrown.values()) >= 2
    assert scene.ended_early == []
    assert sum(summary["restarts"].values()) >= 1


def test_the_clocks_that_a_process_is_told_jump_and_the_machines_do_not(tmp_path: Path) -> None:
    script = "from tests.chaos import clocks; clocks.install(); import time; print(flush=True); input()"
    command = [sys.executable, "-c", f"{script}; print(time.monotonic(), time.time())"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), clocks.VARIABLE: str(tmp_path)}
    with subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        assert clocks.jump(tmp_path, popen.pid, 1e6, -1e6)
        assert not clocks.jump(tmp_path, os.getpid(), 1e6, -1e6)
        told, _ = popen.communicate("\n")
    monotonic, wall = map(float, told.split())
    assert monotonic == pytest.approx(time.monotonic() + 1e6, abs=1e5)
    assert wall == pytest.approx(time.time() - 1e6, abs=1e5)


SOUND: list[list[Any]] = [
    ["copied", 1, "p", "actor-0", 1, [1, 2, 3]],
    ["settled", 1, "p", "actor-0", 1, 2],
    ["copied", 2, "p", "actor-0", 1, [3, 4]],
    ["settled", 2, "p", "actor-0", 1, 4],
    ["published", 1, "p", 1, 1],
    ["published", 2, "p", 2, 1],
    ["adopted", 3, 99, 1, 1],
    ["adopted", 3, 99, 2, 1],
]


WRONG: list[tuple[list[Any], str]] = [
    (["copied", 2, "p", "actor-0", 1, [4]], "twice"),
    (["copied", 3, "p", "actor-0", 1, [4]], "settled up to 4, again"),
    (["settled", 2, "p", "actor-0", 1, 6], "acknowledged and never taken"),
    (["published", 2, "p", 1, 9], "published version (1, 9) after (2, 1)"),
    (["adopted", 3, 99, 2, 1], "adopted version (2, 1) after (2, 1)"),
]


def test_what_was_seen_in_order_is_no_finding_and_what_must_not_be_is_one() -> None:
    """What a dead learner had copied and not settled comes again."""
    assert audit_notes(SOUND) == []
    assert audit_notes([*SOUND, ["settled", 2, "p", "actor-0", 1, 6]], dropped=2) == []
    for wrong, found in WRONG:
        assert found in audit_notes([*SOUND, wrong])[0]


def test_books_that_do_not_balance_are_found() -> None:
    segments = {"produced": 9, "received": 9, "trained": 9, "unexplained": 0, "dropped": {"overwritten": 0}}
    segments |= dict.fromkeys(("duplicates", "rejected", "held", "lost_in_learner", "in_flight"), 0)
    summary: dict[str, Any] = {"complete": True, "agent_steps": 100, "segments": segments}
    assert audit_books(summary, 100) == []
    assert audit_books({**summary, "complete": False}, 100)
    assert audit_books(summary, 101)
    assert audit_books({**summary, "segments": {**segments, "trained": 8}}, 100)
    assert audit_books({**summary, "segments": {**segments, "unexplained": 1}}, 100)
    assert audit_books({**summary, "segments": {**segments, "held": -1, "trained": 10}}, 100)


def test_returns_that_are_not_reached_are_found() -> None:
    def told(reached: float, before: float, goal: Goal, trained: int | None = None) -> list[str]:
        return audit_returns(reached, trained, [[(10, 2.0), (90, 50.0), (200, before)], [(5, -1.0), (180, 500)]], goal)

    assert told(91, 100, Goal()) == told(475, 476, Goal(least=475)) == []
    assert told(89, 100, Goal()) == ["return 89.0, undisturbed 100.0, to be reached 90.0"]
    assert told(474, 500, Goal(least=475)) == ["return 474.0, undisturbed 500.0, to be reached 475.0"]
    assert told(500, 470, Goal(least=475))
    assert told(89, 100, Goal(), trained=200) == told(89, 100, Goal(), trained=210) == told(89, 100, Goal())
    assert told(46, 100, Goal(), trained=185) == []
    assert told(44, 100, Goal(), trained=185) == ["return 44.0, undisturbed 50.0, to be reached 45.0"]
    assert told(-1.05, 100, Goal(), trained=30) == []
    assert told(-1.2, 100, Goal(), trained=30)
    assert told(100, 100, Goal(), trained=19) == ["19 updates, undisturbed 200"]


def test_what_lasts_ends_in_time_and_a_disk_answers_before_it_is_emptied() -> None:
    lasting, ended = Lasting(), list[str]()
    for name, seconds in (("full_disk", -1.0), ("cut", 600.0), ("slow_disk", 600.0), ("stop 7", -1.0)):
        lasting.add(name, seconds, partial(ended.append, name))
    lasting.undo()
    assert ended == ["stop 7"]
    lasting.undo(everything=True)
    assert ended[1] == "slow_disk"
    assert {*ended} == {"stop 7", "slow_disk", "full_disk", "cut"}
    assert "cut" not in lasting


def test_without_root_the_ground_is_plain_folders_and_says_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with ground() as place:
        assert place.kinds == []
        assert place.missing == ["full_disk, slow_disk, full_memory and cut need root"]
        assert Path(place.disk).is_dir()
