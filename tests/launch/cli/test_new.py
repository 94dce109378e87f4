"""`rookery new`: projects that run as they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.cli.main import main
from launch.cli.new import new_project
from launch.config_loader import load
from protocol.config.run import EvaluationConfig
from protocol.errors import DiskFault
from tests.faults import kinds_in
from tests.flows.runs import environment
from tests.tools import skip_or_fail
from workers.tools.doctor import examine

LEAST = {"gymnasium": 0.95, "pettingzoo": 15.0, "jax": 0.95, "torch": 0.95, "simulator": 0.95, "model": 0.8}
"""Kind of a project -> what it earns in the end, as a player who has learned its world does."""


def made(folder: Path, kind: str) -> None:
    """The project `my_maze`, if what it is made with is here."""
    if kind == "jax" and find_spec("jax") is None:
        skip_or_fail("a game of `make returns` is not installed", kind)
    new_project("my_maze", folder, "gymnasium" if kind == "model" else kind, model=kind == "model")


@pytest.mark.parametrize("kind", [*LEAST])
def test_nothing_of_a_template_is_left_open(tmp_path: Path, kind: str) -> None:
    new_project("my_maze", tmp_path, "gymnasium" if kind == "model" else kind, model=kind == "model")
    for path in (tmp_path / "my_maze").iterdir():
        text = path.read_text()
        assert re.findall("NAME|CHECK|ENVIRONMENT|EVALUATION|SEQUENTIAL|NETWORK", text) == []
        if path.suffix == ".py":
            compile(text, path, "exec")
    assert load(str(tmp_path / "my_maze" / "train.yaml")).environment.copies


def test_a_network_of_its_own_is_for_gymnasium(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["new", "my_maze", "--from", "torch", "--model", "--in", str(tmp_path)])
    assert (told.exit_code, [*tmp_path.iterdir()]) == (2, [])


def test_a_project_is_an_environment_a_configuration_and_a_test(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["new", "my_maze", "--in", str(tmp_path)])
    assert told.exit_code == 0, told.output
    folder = tmp_path / "my_maze"
    assert {path.name for path in folder.iterdir()} == {"my_maze.py", "train.yaml", "test_my_maze.py"}
    assert not any("NAME" in path.read_text() or "CHECK" in path.read_text() for path in folder.iterdir())
    run = load(str(folder / "train.yaml"))
    assert run.environment.id == "my_maze:make"
    assert isinstance(run.evaluation, EvaluationConfig)
    again = CliRunner().invoke(main, ["new", "my_maze", "--in", str(tmp_path)])
    assert again.exit_code == 2
    assert kinds_in(again.output) == ["project_already_there"]
    assert str(folder) in again.output


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("my-env", "module_name_invalid"),
        ("class", "module_name_invalid"),
        ("numpy", "module_name_taken"),
        ("__main__", "module_name_taken"),
    ],
)
def test_a_name_that_python_cannot_import_or_knows_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    told = CliRunner().invoke(main, ["new", name, "--in", str(tmp_path)])
    assert told.exit_code == 2
    assert kinds_in(told.output) == [kind]
    assert repr(name) in told.output
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_asks_for_another(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["new", "my_maze", "--in", "/proc"])
    assert told.exit_code == DiskFault.exit_code
    assert kinds_in(told.output) == ["file_not_writable"]
    assert "/proc/my_maze" in told.output
    assert "another --in" in told.output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [*LEAST])
def test_the_tests_of_a_new_project_pass(tmp_path: Path, kind: str) -> None:
    """They check the environment by its own interface's checker, and train on it a little."""
    made(tmp_path, kind)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "my_maze",
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "least"), LEAST.items())
def test_a_new_project_learns_and_is_clean_under_the_doctor(tmp_path: Path, kind: str, least: float) -> None:
    made(tmp_path, kind)
    folder = tmp_path / "my_maze"
    command = [
        sys.executable,
        "-m",
        "launch",
        "train",
        "train.yaml",
        "--seed",
        "0",
        "--run-dir",
        "run",
        "--no-progress",
    ]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["health"]["findings"] == []
    assert [layer.line for layer in examine(folder / "run") if layer.state != "ok"] == []
    assert min(one["last"] for one in summary["returns"].values()) >= least
