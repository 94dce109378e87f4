"""A run that was stopped when all its steps were made is gone on with by its coordinator alone."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.local import supervisor
from protocol.config.run import parse_run
from protocol.errors import ConfigurationError, Refused
from protocol.transport.curve import run_keys
from tests.faults import raises


def client(kind: str) -> Any:
    """A client whose coordinator refuses it."""

    def join(_seconds: float) -> None:
        raise Refused(kind, limit=1)

    return SimpleNamespace(join=join)


def test_a_coordinator_with_nothing_left_to_do_needs_no_workers() -> None:
    assert supervisor._join(client("run_has_ended")) is None


@pytest.mark.parametrize("kind", ["run_is_ending", "nothing_left_to_do", "share_spent"])
def test_any_other_refusal_is_told(kind: str) -> None:
    with raises(Refused, kind):
        supervisor._join(client(kind))


@pytest.mark.parametrize("fresh", [True, False])
def test_a_run_that_cannot_make_its_keys_leaves_no_new_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    folder = tmp_path / "run"
    if fresh:
        monkeypatch.setattr(supervisor, "run_keys", lambda keys: run_keys(keys / "none"))
    else:
        (folder / "run-keys").mkdir(parents=True, mode=0o755)
    with pytest.raises((FileNotFoundError, ConfigurationError)):
        supervisor.train(parse_run({}), folder, lambda _: None, lambda _: None)
    assert folder.exists() != fresh


def test_a_sequential_run_whose_world_ends_its_process_has_not_reached_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaver.py").write_text("import os\n\ndef leave():\n    os._exit(0)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    run = parse_run({"environment": {"id": "leaver:leave"}})
    with raises(supervisor.RunFailed, "sequential_run_failed") as caught:
        supervisor.train_sequential(run, tmp_path / "run", lambda _: None, lambda _: None)
    assert "leaver.py:4" in str(caught.value)
