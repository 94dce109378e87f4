"""`rookery roster`: whom it tells, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from launch.cli import roster as module
from launch.cli.main import main
from protocol.control.run_summary import NO_COMMANDS
from tests.faults import kinds_in
from tests.launch.cli.test_status import announce
from tests.workers.coordination.dashboard.pages import shown


def roster(*arguments: str) -> Result:
    """The command's answer."""
    return CliRunner().invoke(main, ["roster", *arguments], env={"COLUMNS": "160"})


def test_another_run_that_has_come_to_live_at_the_port_is_told_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown(run_dir) as (run, url):
        monkeypatch.setenv("ROOKERY_TOKEN", run.token)
        over = run_dir / "over"
        announce(over, url, "another")
        assert kinds_in(roster(str(over), "freeze", "agent_0").output) == ["coordinator_answer_unusable"]
        (over / "summary.json").write_text(json.dumps({"roster": {"rates": {"agent_0": 0.5}}}))
        assert kinds_in(roster(str(over), "freeze", "agent_0").output) == ["roster_run_is_ending"]
        assert json.loads(roster(str(over), "--json").output) == {
            "commands": [],
            **NO_COMMANDS,
            "rates": {"agent_0": 0.5},
        }
        assert run.controls.roster.commands == []
        announce(run_dir, url)
        assert roster(str(run_dir), "freeze", "agent_0").exit_code == 0
        assert len(run.controls.roster.commands) == 1


def test_a_file_that_becomes_shorter_while_it_is_sent_is_told(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"weights")

    def answered(*_: object) -> dict[str, int]:
        file.write_bytes(b"w")
        return {"size": 3}

    announce(run_dir, "http://127.0.0.1:1")
    monkeypatch.setattr(module, "_answered", answered)
    assert kinds_in(roster(str(run_dir), "replace", "agent_0", "--from", str(file)).output) == ["start_not_safetensors"]


def test_a_command_says_what_was_before(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shown(run_dir) as (run, url):
        monkeypatch.setenv("ROOKERY_TOKEN", run.token)
        assert "as configured" in roster(url).output
        old = run.controls.roster._plans["agent_0"].config.learning_rate
        assert roster(url, "set", "agent_0", "learning_rate=3").output.endswith(f"learning_rate=3 (before: {old})\n")
        told = json.loads(roster(url, "freeze", "agent_0", "--json").output)
        assert (told["number"], told["old"], told["new"]) == (2, False, True)
        assert "learning rates set: agent_0 3;" in roster(url).output


def test_a_run_in_one_process_is_told_nothing_and_says_so(run_dir: Path) -> None:
    announce(run_dir, "")
    refused = roster(str(run_dir), "freeze", "agent_0")
    assert kinds_in(refused.output) == ["coordinator_silent"]
    assert "in one process" in refused.output
