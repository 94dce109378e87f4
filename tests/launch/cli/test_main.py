"""The command line: help for everything, one sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.cli.main import main
from launch.local import supervisor
from protocol import RELEASE
from tests.faults import kinds_in

COMMANDS = ("train", "doctor", "coordinator", "learner", "actor", "presets", "clean")


@pytest.mark.parametrize("command", ["train", "doctor", "coordinator", "presets", "clean"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert len(result.output.splitlines()) > 3


def test_help_names_all_commands() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert all(f"  {command} " in result.output for command in COMMANDS)
    assert CliRunner().invoke(main, ["--version"]).output.strip().endswith(RELEASE)


def test_presets_are_listed_with_their_sentence() -> None:
    result = CliRunner().invoke(main, ["presets"])
    assert result.exit_code == 0
    assert any(line.startswith("treasure-hunt ") and "gridworld" in line for line in result.output.splitlines())


@pytest.mark.parametrize(
    ("arguments", "kinds", "named"),
    [
        (["train", "tresure"], ["run_source_unknown"], "'tresure'"),
        (["train", "cartpole", "--set", "stepz=1"], ["unknown_key"], "'stepz'"),
        (["train", "cartpole", "--set", "steps=many"], ["value_invalid"], "steps"),
        (["train", "cartpole", "--set", "steps"], ["setting_not_key_value"], "'steps'"),
        (["train", "cartpole", "--steps", "0"], [], "Invalid value for '--steps'"),
        (["coordinator", "tresure"], ["run_source_unknown"], "'tresure'"),
        (["coordinator", "--set", "stepz=1", "--bind", "127.0.0.1:0"], ["unknown_key"], "'stepz'"),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], kinds: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    said = result.output.strip().splitlines()[-1]
    assert said.startswith("rookery: " if kinds else "Error: ")
    assert kinds_in(said) == kinds
    assert named in said
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "coordinator"])
def test_the_folder_of_a_finished_run_is_not_written_into(tmp_path: Path, command: str) -> None:
    (tmp_path / "summary.json").write_text("{}")
    result = CliRunner().invoke(main, [command, "cartpole", "--run-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert kinds_in(result.output) == ["run_already_finished"]
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(("complete", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_the_run_reached_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool, code: int
) -> None:
    summary = {"returns": {"a": {"first": 1.0, "last": 2.0, "best": 2.0}}, "baselines": {}, "environments": {}}
    monkeypatch.setattr(supervisor, "train", lambda *_: supervisor.RunOutcome(complete, summary))
    result = CliRunner().invoke(main, ["train", "cartpole", "--run-dir", str(tmp_path / "run"), "--json"])
    assert result.exit_code == code
    assert '"returns"' in result.output


def test_a_run_without_a_summary_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "train", lambda *_: supervisor.RunOutcome(False, {}))
    result = CliRunner().invoke(main, ["train", "cartpole", "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert "see the logs in its folder" in result.output


def test_clean_removes_what_nobody_uses_and_names_it(memory_dir: Path) -> None:
    (memory_dir / "rookery-dead-a.ring").write_bytes(b"x")
    result = CliRunner().invoke(main, ["clean"])
    assert result.output == f"removed {memory_dir}/rookery-dead-a.ring\n"
    assert list(memory_dir.iterdir()) == []


def test_a_shell_completes_commands_presets_and_files() -> None:
    def offered(typed: str) -> list[str]:
        words = {"COMP_WORDS": f"rookery {typed}", "COMP_CWORD": str(len(typed.split())), "COLUMNS": "80"}
        result = CliRunner().invoke(main, prog_name="rookery", env={"_ROOKERY_COMPLETE": "bash_complete", **words})
        return result.output.splitlines()

    assert offered("sta") == ["plain,status"]
    assert offered("train cartp") == [
        *(f"plain,{name}" for name in ("cartpole", "cartpole-blind", "cartpole-iqn")),
        "file,cartp",
    ]
