"""A run that was stopped when all its steps were made is gone on with by its coordinator alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from launch.local import supervisor
from protocol.config.run import parse_run
from protocol.control.client import ControlClient
from protocol.errors import ConfigurationError, Refused, RookeryError, Timeout
from protocol.transport.curve import run_keys
from protocol.transport.sockets import open_context
from tests.faults import raises


def client(fault: RookeryError) -> Any:
    """A client whose coordinator answers so."""

    def join(_seconds: float, _gone: Callable[[], bool]) -> None:
        raise fault

    return SimpleNamespace(join=join)


def coordinator(code: int | None, words: str = "ended") -> Any:
    """One that ends with this code and these words, or goes on."""
    popen = SimpleNamespace(wait=lambda _seconds: code)
    said = {"why": lambda: "ended", "own_words": lambda: words}
    return SimpleNamespace(code=code, popen=popen, output=Path("coordinator.out"), **said)


SILENT = Timeout("no_coordinator_answered", peer="there", seconds=1.0)


@pytest.mark.parametrize("fault", [Refused("run_has_ended"), SILENT])
def test_a_coordinator_with_nothing_left_to_do_needs_no_workers(fault: RookeryError) -> None:
    """Whether it says so or has ended before it was asked."""
    assert supervisor._join(client(fault), coordinator(0)) is None


@pytest.mark.parametrize("fault", [Refused("run_has_ended"), SILENT])
def test_one_that_failed_is_told(fault: RookeryError) -> None:
    with raises(supervisor.RunFailed, "coordinator_failed", reason="ended"):
        supervisor._join(client(fault), coordinator(1))
    with raises(supervisor.RunFailed, "nothing_trained"):
        supervisor._join(client(fault), coordinator(8, "the run trained nothing [nothing_trained]"))


@pytest.mark.parametrize("kind", ["run_is_ending", "nothing_left_to_do", "share_spent"])
def test_any_other_refusal_is_told(kind: str) -> None:
    with raises(Refused, kind):
        supervisor._join(client(Refused(kind, limit=1)), coordinator(0))


def test_nobody_asks_on_whose_coordinator_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that lives and is silent is told as that."""
    with open_context("", "supervisor") as context:
        asking = ControlClient(context, "tcp://127.0.0.1:9", "supervisor")
        asked = Mock(wraps=asking._ask)
        monkeypatch.setattr(asking, "_ask", asked)
        assert supervisor._join(asking, coordinator(0)) is None
        asking.close()
    asked.assert_called_once()
    with raises(Timeout, "no_coordinator_answered"):
        supervisor._join(client(SILENT), coordinator(None))


@pytest.mark.parametrize(
    ("words", "told"),
    [([""], []), (["", "its end"], []), (["", "in a", "in a", "in b", "in b"], ["in a"]), (["in a"] * 3, ["in a"])],
)
def test_who_waits_for_a_run_to_begin_is_told_once_where_it_is_and_who_stops_it_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: list[str]
) -> None:
    monkeypatch.setattr(supervisor, "_SAID_EVERY", 0.0)
    interrupt: Any = SimpleNamespace(count=0)
    left, heard = [*words], list[str]()

    def own_words() -> str:
        interrupt.count = len(left) == 1
        return left.pop(0)

    slow: Any = SimpleNamespace(code=None, own_words=own_words)
    reason = f": {words[-1]}" if words[-1] else ""
    with raises(supervisor.RunFailed, "run_interrupted_early", reason=reason):
        supervisor._address(tmp_path, slow, interrupt, heard.append)
    assert heard == told


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


def test_what_several_wait_for_is_told_once(tmp_path: Path) -> None:
    said = [["step is slow"], ["step is slow", "reset is slow"], []]
    processes: Any = [
        SimpleNamespace(new_waits=waits.pop, output=tmp_path / f"actor-{number}.out")
        for number, waits in enumerate([one] for one in said)
    ]
    lines: list[str] = []
    supervisor._tell_waits(processes, set(), lines.append)
    assert lines == ["actor-0: step is slow", "actor-1: reset is slow"]
