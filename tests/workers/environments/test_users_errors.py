"""What a user's code raises is told as the user's: function, file and line, and a traceback without our frames."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig, ScriptedPolicy
from protocol.errors import EnvironmentFault, RookeryError
from tests.faults import kinds_in, raises
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import describe, make
from workers.rollout.players.scripted_player import build_scripted_player
from workers.runtime import last_words
from workers.runtime.logs import facts

WORLD = """
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class World(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, where="", how=""):
        self.where, self.how = where, how
        self.at("constructor")

    @property
    def observation_space(self):
        self.at("observation_space")
        return gymnasium.spaces.Box(0, 1, (2,))

    def reset(self, *, seed=None, options=None):
        self.at("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.at("step")
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        self.at("render")

    def close(self):
        print("closed", file=open("closed", "a"))
        self.at("close")

    def at(self, place):
        if place in self.where.split():
            getattr(self, self.how or "key")()

    def key(self):
        {}["sword"]  # key

    def exits(self):
        raise SystemExit(0)  # exits

    def stops(self):
        raise KeyboardInterrupt  # stops

    def odd(self):
        raise Odd  # odd

    def chained(self):
        try:
            self.key()
        except KeyError as fault:
            raise ValueError("no sword") from fault  # chained

    def pooled(self):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.key).result()

    def deep(self):
        self.deep()  # deep

    def asserts(self):
        assert 1 > 2  # asserts


gymnasium.registry.pop("Registered-v0", None)
gymnasium.register("Registered-v0", World)


class Parallel(World):
    possible_agents = agents = ["a", "b"]

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        return dict.fromkeys(self.agents, seen), info

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 1, (2,))

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, **options):
        seen, info = super().reset(**options)
        return dict.fromkeys(self.agents, seen), dict.fromkeys(self.agents, info)


class Turns(Parallel):
    def agent_iter(self):
        return iter(self.agents)


def player(place, streams, generator):
    return lambda present: {}["move"]  # move
"""
MODULES = {
    "attribute": ("import numpy as np\nDTYPE = np.float_of_old\n", "AttributeError", "", 2),
    "absent_name": ("from {name}_helper import helper\n", "ImportError", "_deeper", 1),
    "syntax": ("def make(:\n", "SyntaxError", "", 1),
    "exits": ("import sys\nsys.exit('bye')\n", "SystemExit: bye", "", 2),
    "stops": ("x = 1\n\nraise KeyboardInterrupt\n", "KeyboardInterrupt", "", 3),
}


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, called so, in the working directory."""
    name = f"worlds_{abs(hash(tmp_path)):x}"
    (tmp_path / f"{name}.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


def line_of(mark: str) -> int:
    return next(i for i, line in enumerate(WORLD.splitlines(), 1) if line.endswith(f"# {mark}"))


def assert_users(fault: BaseException, file: Path, line: int) -> None:
    """It names the place; the traceback has its frame and none of ours; the whole one has ours."""
    assert isinstance(fault, RookeryError)
    assert (fault.file, fault.line) == (str(file), line)
    assert f"{file.name}:{line}" in str(fault)
    assert "\n" not in str(fault)
    assert str(file) in fault.traceback
    assert "/workers/environments/" not in fault.traceback.replace("/tests/workers/", "/")
    assert "/workers/" in "".join(traceback.format_exception(fault))


@pytest.mark.parametrize(
    ("where", "how", "kind", "reason"),
    [
        ("constructor", "key", "environment_function_refused_settings", "KeyError: 'sword'"),
        ("observation_space", "key", "environment_creation_failed", "KeyError: 'sword'"),
        ("reset", "key", "environment_creation_failed", "KeyError: 'sword'"),
        ("step", "key", "environment_raised", "KeyError: 'sword'"),
        ("step", "exits", "environment_raised", "SystemExit: 0"),
        ("step", "stops", "environment_raised", "KeyboardInterrupt"),
        ("step", "odd", "environment_raised", "Odd: its text cannot be made"),
        ("step", "chained", "environment_raised", "ValueError: no sword"),
        ("step", "pooled", "environment_raised", "KeyError: 'sword'"),
        ("step", "deep", "environment_raised", "RecursionError: maximum recursion depth exceeded"),
        ("step", "asserts", "environment_raised", "AssertionError"),
        ("render", "key", "environment_raised", "KeyError: 'sword'"),
    ],
)
def test_wherever_a_world_raises_it_is_told_with_function_file_and_line(
    name: str, where: str, how: str, kind: str, reason: str, tmp_path: Path
) -> None:
    config = EnvironmentConfig(id=f"{name}:World", copies=1, settings={"where": where, "how": how})
    with raises(RookeryError, kind, reason=reason, function="key" if how == "pooled" else how) as caught:
        environment = CheckedEnvironment(make(config))
        environment.reset(0)
        environment.step([np.zeros(1, np.int64)])
        environment.render_rgb()
    assert_users(caught.value, tmp_path / f"{name}.py", line_of("key" if how == "pooled" else how))
    assert ("KeyError" in caught.value.traceback) == (how in ("key", "chained", "pooled"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["key", "exits", "chained"])
@pytest.mark.parametrize("world", ["World", "Parallel", "Turns"])
def test_a_world_that_raises_as_it_is_closed_is_described_and_told_with_its_place(
    name: str, world: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = EnvironmentConfig(id=f"{name}:{world}", copies=3, settings={"where": "close", "how": how})
    assert describe(config).agents
    CheckedEnvironment(make(config)).close()
    assert Path("closed").read_text().splitlines() == ["closed"] * (1 + 3), "the other copies are closed too"
    for record in caplog.records:
        said = facts(record.getMessage())
        assert (said["event"], said["environment"]) == ("close_raised", config.id)
        assert kinds_in(str(said["error"])) == ["environment_raised"]
        assert f"{name}.py:{line_of(how)}" in str(said["error"])
    assert len(caplog.records) == 2


@pytest.mark.parametrize("world", ["World", "Parallel", "Turns"])
def test_what_a_world_raises_first_is_told_whatever_it_raises_as_it_is_closed(
    name: str, world: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EnvironmentConfig(id=f"{name}:{world}", copies=2, settings={"where": "reset close"})
    with raises(EnvironmentFault, "environment_creation_failed", function="key") as caught:
        make(config)
    assert_users(caught.value, tmp_path / f"{name}.py", line_of("key"))
    assert "in reset" in caught.value.traceback  # type: ignore[attr-defined]
    assert Path("closed").read_text().splitlines() == ["closed"] * 2
    (record,) = caplog.records
    assert "event=close_raised" in record.getMessage()


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("{name}:make", "module_import_failed"),
        ("pettingzoo:{name}", "module_import_failed"),
        ("gymnasium:{name}:Some-v0", "environment_creation_failed"),
    ],
)
@pytest.mark.parametrize("how", MODULES)
def test_what_a_module_raises_when_it_is_imported_is_its_own(
    name: str, form: str, kind: str, how: str, tmp_path: Path
) -> None:
    """Not a name that is missing in it, at whatever depth of its imports."""
    text, reason, deeper, line = MODULES[how]
    (tmp_path / f"{name}_bad.py").write_text(text.format(name=name))
    (tmp_path / f"{name}_helper.py").write_text(f"import {name}_deeper as helper\n")
    (tmp_path / f"{name}_deeper.py").write_text("from math import no_such_function\n")
    with raises(RookeryError, kind, line=line) as caught:
        make(EnvironmentConfig(id=form.format(name=f"{name}_bad"), copies=1))
    assert_users(caught.value, tmp_path / (f"{name}{deeper}.py" if deeper else f"{name}_bad.py"), line)
    assert caught.value.reason.startswith(reason)  # type: ignore[attr-defined]


def test_a_registered_world_whose_constructor_raises_is_told_alike(name: str, tmp_path: Path) -> None:
    config = EnvironmentConfig(
        id=f"gymnasium:{name}:Registered-v0", copies=1, settings={"where": "constructor", "how": "asserts"}
    )
    with raises(RookeryError, "environment_settings_refused", function="asserts") as caught:
        make(config)
    assert_users(caught.value, tmp_path / f"{name}.py", line_of("asserts"))


def test_a_player_of_the_users_is_told_alike(name: str, tmp_path: Path) -> None:
    where = EnvironmentConfig(id="treasure_hunt", copies=1)
    environment = make(where)
    algorithm = ScriptedPolicy(name="scripted", entry=f"{name}:player")
    place = environment.world.places[0]
    player = build_scripted_player("a", algorithm, place, 1, np.random.default_rng(0), where)
    with raises(EnvironmentFault, "script_raised", reason="KeyError: 'move'") as caught:
        player(environment.reset(0).present[0])
    environment.close()
    assert_users(caught.value, tmp_path / f"{name}.py", line_of("move"))


def test_a_fault_of_a_world_of_ours_hides_no_frame() -> None:
    environment = CheckedEnvironment(make(EnvironmentConfig(id="treasure_hunt", copies=1)))
    environment.reset(0)
    environment._turn = Turn(())
    with raises(EnvironmentFault, "environment_raised") as caught:
        environment.step([])
    assert "fixed_length.py" in caught.value.traceback  # type: ignore[attr-defined]


def test_what_ends_a_thread_of_a_world_is_logged_whole_and_shown(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise OSError("the camera is gone")

    said: list[Any] = []
    thread = threading.Thread(target=broken, name="camera")
    hook, threading.excepthook = threading.excepthook, said.append
    try:
        thread.start()
        thread.join()
    finally:
        threading.excepthook = hook
    with caplog.at_level(logging.ERROR):
        last_words._tell_thread(said[0])
    (record,) = caplog.records
    assert record.exc_info is not None
    assert {"event=thread_raised", "thread=camera"} <= {*record.getMessage().split()}
    assert "OSError: the camera is gone" in capsys.readouterr().err
