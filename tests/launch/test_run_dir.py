"""The folder of a run: who goes on with it finds learners where they were, whatever the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import run_dir
from launch.run_dir import on_this_machine, write_config
from protocol.config.run import parse_run


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
