"""The folder of a run: who goes on with it finds learners where they were, whatever the machine."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from launch import run_dir
from launch.run_dir import folder_for, make_folder, on_this_machine, write_config
from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises


def test_a_run_that_goes_on_elsewhere_keeps_its_learners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = parse_run({"steps": 9})
    monkeypatch.setattr(run_dir, "available_cores", lambda: 2.5)
    begun = on_this_machine(given, tmp_path)
    assert (begun.learners, begun.num_learner_processes) == ("auto", 2)
    assert on_this_machine(given, tmp_path, gpu=True) == given
    write_config(begun, tmp_path)
    (tmp_path / "state.json").touch()
    monkeypatch.setattr(run_dir, "available_cores", lambda: 64.0)
    for gpu in (False, True):
        assert write_config(on_this_machine(given, tmp_path, gpu), tmp_path)


@pytest.mark.parametrize("alone", [False, True])
def test_the_folder_of_a_living_run_is_in_use_whoever_wants_it(tmp_path: Path, alone: bool) -> None:
    """Of one that was stopped, one process alone is told that workers must go on with it."""
    (tmp_path / "state.json").touch()
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert folder_for(parse_run({}), "cartpole", tmp_path, alone) == tmp_path
        with raises(ConfigurationError, "folder_in_use"):
            make_folder(tmp_path)
    assert not make_folder(tmp_path)
    if alone:
        with raises(ConfigurationError, "run_of_workers_stopped"):
            folder_for(parse_run({}), "cartpole", tmp_path, alone)
    else:
        assert folder_for(parse_run({}), "cartpole", tmp_path) == tmp_path


OVER = {"complete": True, "agent_steps": 100, "seconds": 9.0}
ALONE = {"actors": 0, "policy": {"algorithm": {"name": "bc"}, "dataset": {"path": "x"}}}


@pytest.mark.parametrize(
    ("began", "changes", "key"),
    [
        ({"steps": 100}, {}, "steps"),
        ({"steps": 100}, {"seconds": 99}, "steps"),
        ({"steps": 100}, {"target_return": 5}, "steps"),
        ({"steps": 900, "until": 100}, {}, "until"),
        ({"steps": 900, "seconds": 8}, {}, "seconds"),
        ({"steps": 900, "seconds": 8}, {"steps": 1_000}, "seconds"),
        ({"steps": 900, "seconds": 8}, {"seconds": 9}, "seconds"),
        ({"steps": 900, "target_return": 5}, {}, "target_return"),
        ({"steps": 900, "target_return": 5}, {"steps": 1_000}, "target_return"),
        ({"steps": 100, **ALONE}, {"seconds": 99}, "steps"),
    ],
)
def test_a_run_that_would_end_at_once_again_is_refused_with_the_key_that_ended_it(
    tmp_path: Path, began: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    write_config(parse_run(began), tmp_path)
    (tmp_path / "state.json").touch()
    (tmp_path / "summary.json").write_text(json.dumps(OVER))
    with raises(ConfigurationError, "run_already_finished", file=tmp_path, key=key):
        folder_for(parse_run(began | changes), "", tmp_path)


@pytest.mark.parametrize(
    ("began", "changes"),
    [
        ({"steps": 100}, {"steps": 200}),
        ({"steps": 900, "until": 100}, {"until": None}),
        ({"steps": 900, "seconds": 8}, {"seconds": 10}),
        ({"steps": 900, "seconds": 8}, {"seconds": None}),
        ({"steps": 900, "target_return": 5}, {"target_return": 6}),
        ({"steps": 900, "seconds": 8, **ALONE}, {"seconds": 10}),
    ],
)
def test_a_run_goes_on_when_what_ended_it_is_moved(
    tmp_path: Path, began: dict[str, Any], changes: dict[str, Any]
) -> None:
    write_config(parse_run(began), tmp_path)
    (tmp_path / "state.json").touch()
    (tmp_path / "summary.json").write_text(json.dumps(OVER))
    assert folder_for(parse_run(began | changes), "", tmp_path) == tmp_path
