"""The world of a run is told by another process, which may end as it likes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import Run, parse_run
from protocol.errors import EnvironmentFault
from tests.faults import kinds_in, raises
from workers.environments.registry import describe
from workers.evaluation.description import described

__all__ = []


def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str, **keys: Any) -> Run:
    """A run in `make` of a module that begins with `world`."""
    (tmp_path / "its_world.py").write_text(
        f"{world}\nimport gymnasium\ndef make(): return gymnasium.make('CartPole-v1')"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "its_world", raising=False)
    return parse_run({"environment": {"id": "its_world:make"}, **keys})


def test_the_world_is_the_same_and_its_module_is_imported_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, monkeypatch, "import os; open('pid', 'w').write(str(os.getpid()))")
    world = described(run, "coordinator")
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    assert world == describe(run.environment)


@pytest.mark.parametrize(
    ("world", "kind", "code"),
    [
        ("raise ValueError('no')", "module_import_failed", 2),
        ("import a_package_that_is_not_there", "module_missing", 2),
        ("raise SystemExit", "module_import_failed", 2),
        ("import os; os._exit(2)", None, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", None, None),
    ],
)
def test_what_is_wrong_there_is_said_there_and_what_could_not_be_said_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    world: str,
    kind: str | None,
    code: int | None,
) -> None:
    run = run_of(tmp_path, monkeypatch, world)
    if kind is None:
        with raises(EnvironmentFault, "world_not_described", environment="its_world:make") as caught:
            described(run, "coordinator")
        assert caught.value.reason.endswith(" in <module> (its_world.py:1)")  # type: ignore[attr-defined]
        return
    with pytest.raises(SystemExit) as ended:
        described(run, "coordinator")
    assert ended.value.code == code
    assert kinds_in(capfd.readouterr().err)[-1] == kind


def test_a_frozen_policy_is_looked_for_where_the_command_was_given_wherever_the_world_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    frozen = {"agent": {"algorithm": {"name": "frozen", "path": "agent.safetensors"}}}
    run = run_of(tmp_path, monkeypatch, "import os\nos.chdir('/')", policies=frozen)
    with pytest.raises(SystemExit):
        described(run, "coordinator")
    said = capfd.readouterr().err
    assert kinds_in(said)[-1] == "policy_file_missing"
    assert str(tmp_path / "agent.safetensors") in said


def test_scripts_of_policies_are_tried_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "its_script.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    script = {"agent": {"algorithm": {"name": "scripted", "entry": "its_script:Player"}}}
    run = run_of(tmp_path, monkeypatch, "", policies=script)
    with raises(EnvironmentFault, "world_not_described", reason=f"it was killed by {signal.SIGKILL.name}"):
        described(run, "coordinator")
