"""A module that the user names is the user's, from the working directory; what ours it is taken for is said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import protocol
from protocol.config.run import EnvironmentConfig, ScriptedPolicy
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.registry import describe, make
from workers.rollout.players.scripted_player import build_scripted_player
from workers.runtime.entry_points import import_entry_point

MAKE = "def make():\n    return __file__\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, of which nothing stays imported."""
    before, path = {*sys.modules}, [*sys.path]
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")) or name == "user_folder":
            del sys.modules[name]
    sys.path[:] = path


def imported(entry: str) -> object:
    """What its function returns."""
    return import_entry_point(entry, "environment.id", "module:function")()


@pytest.mark.parametrize(
    ("entry", "file"),
    [
        ("mine:make", "mine.py"),
        ("protocol:make", "protocol.py"),
        ("workers:make", "workers/__init__.py"),
        ("workers.maze:make", "workers/maze.py"),
        ("launch.a.b:make", "launch/a/b.py"),
        ("rookery:make", "rookery.py"),
        ("random:make", "random.py"),
        ("test:make", "test.py"),
        ("tests:make", "tests.py"),
        ("lbforaging:make", "lbforaging.py"),
    ],
)
def test_the_module_that_is_named_is_the_users_whatever_its_name(entry: str, file: str, folder: Path) -> None:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MAKE)
    assert imported(entry) == str(path)
    assert sys.modules["protocol"] is protocol


def test_what_lies_beside_it_is_found_under_its_own_name_or_by_a_relative_import(folder: Path) -> None:
    (folder / "workers").mkdir()
    (folder / "helper_of_maze.py").write_text("SIZE = 7\n")
    (folder / "workers" / "walls.py").write_text("HEIGHT = 3\n")
    (folder / "workers" / "maze.py").write_text(
        "import helper_of_maze\nfrom .walls import HEIGHT\n\ndef make():\n    return helper_of_maze.SIZE * HEIGHT\n"
    )
    assert imported("workers.maze:make") == 21


def test_a_module_that_lies_elsewhere_is_taken_where_the_folder_has_none(folder: Path) -> None:
    found = import_entry_point("workers.runtime.entry_points:import_entry_point", "environment.id", "")
    assert found is import_entry_point


@pytest.mark.parametrize(
    ("named", "theirs", "code"),
    [
        ("protocol", "protocol.py", "from protocol import Message"),
        ("protocol", "protocol/__init__.py", "import protocol.packets"),
        ("workers", "workers/maze.py", "from workers import maze"),
        ("workers", "workers/maze.py", "import workers.maze"),
        ("protocol", "protocol.py", "import protocol\nprotocol.Message()"),
    ],
)
def test_ours_that_was_taken_for_the_users_is_said_with_both_paths(
    named: str, theirs: str, code: str, folder: Path
) -> None:
    path = folder / theirs
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("class Message:\n    pass\n")
    (folder / "env_of_mine.py").write_text(f"{code}\n{MAKE}")
    ours = getattr(sys.modules[named], "__file__", None)
    with raises(ConfigurationError, "module_name_clash", name=named, ours=ours, value="env_of_mine") as fault:
        imported("env_of_mine:make")
    assert isinstance(fault.value, ConfigurationError)
    assert fault.value.file in (path, path.parent)


@pytest.mark.parametrize("how", ["environment", "class", "script"])
@pytest.mark.parametrize(
    ("named", "theirs", "code"),
    [
        ("protocol", "protocol.py", "from protocol import Message"),
        ("workers", "workers/maze.py", "import workers.maze"),
        ("protocol", "protocol.py", "import protocol; protocol.Message()"),
    ],
)
def test_ours_that_is_taken_for_the_users_when_its_function_is_called_is_said_alike(
    named: str, theirs: str, code: str, how: str, folder: Path
) -> None:
    path = folder / theirs
    path.parent.mkdir(exist_ok=True)
    path.write_text("class Message:\n    pass\n")
    (folder / "env_of_mine.py").write_text(
        f"from gymnasium.spaces import Discrete\n\n\ndef make(*_):\n    {code}\n\n\nclass Late:\n"
        f"    action_space = observation_space = Discrete(2)\n    step = close = print\n\n"
        f"    def reset(self, **_):\n        {code}\n"
    )
    entry = "env_of_mine:Late" if how == "class" else "env_of_mine:make"
    where = EnvironmentConfig(id="cleanup" if how == "script" else entry, copies=1)
    ours = getattr(sys.modules[named], "__file__", None)
    with raises(ConfigurationError, "module_name_clash", name=named, ours=ours, value=entry) as fault:
        if how == "script":
            place = describe(where).places[0]
            script = ScriptedPolicy(name="scripted", entry=entry)
            build_scripted_player("a", script, place, 1, np.random.default_rng(0), where)
        make(where)
    assert fault.value.file in (path, path.parent)  # type: ignore[attr-defined]


def test_what_is_missing_or_wrong_in_ours_is_no_clash_where_the_folder_has_none(folder: Path) -> None:
    (folder / "env_of_mine.py").write_text(f"from protocol import Message\n{MAKE}")
    with raises(ConfigurationError, "module_import_failed", value="env_of_mine:make"):
        imported("env_of_mine:make")
