"""The world of a run is told by another process, which may end as it likes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import Run, parse_run
from protocol.errors import EnvironmentFault
from tests.faults import kinds_in, raises
from tests.tools import ROOT
from workers.environments.registry import describe
from workers.evaluation import description
from workers.evaluation.description import described
from workers.planning.policy_plan import plan_policies
from workers.planning.policy_spec import fields_of, policy_spec
from workers.runtime.logs import facts

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


CORE = """
import os

import torch
from torch import nn


class Counting(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = 1
        open("pid", "w").write(str(os.getpid()))

    def initial_state(self, rows):
        return {"steps": torch.zeros(rows, dtype=torch.int64)}

    def forward(self, features, state, first):
        steps, outputs = state["steps"], []
        for new in first:
            steps = steps.masked_fill(new, 0) + 1
            outputs.append(steps[:, None].float())
        return torch.stack(outputs), {"steps": steps}
"""
HANGS = """
import ctypes
import os

import numpy as np
from gymnasium import Env, spaces


def hang():
    while True: pass


def segfault():
    ctypes.string_at(0)


def leave():
    os._exit(0)


def old():
    return np.zeros(2, np.float32), 0.0, False, {{}}


def stranger():
    return np.zeros(3, np.float32), 0.0, False, False, {{}}


def paid():
    return np.zeros(2, np.float32), "much", False, False, {{}}


def at(place):
    if place == "{where}":
        return {how}()


class World(Env):
    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self):
        at("__init__")

    def reset(self, *, seed=None, options=None):
        at("reset")
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        return at("step") or (np.zeros(2, np.float32), 0.0, False, False, {{}})

    def close(self):
        at("close")


def make():
    at("make")
    return World()


at("import")
"""


MASKED = """
import numpy as np
from gymnasium import Env, spaces


class World(Env):
    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {"action_mask": np.array([0, 0, 1], np.int8)}

    def step(self, action):
        print(action, file=open("played", "a"), end="", flush=True)
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""


def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, how: str = "hang", **keys: Any) -> Run:
    """A run in `make` of a module in which something happens at one place."""
    run = run_of(tmp_path, monkeypatch, "", **keys)
    (tmp_path / "its_world.py").write_text(HANGS.format(where=where, how=how))
    return run


def test_the_world_is_the_same_and_its_module_is_imported_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, monkeypatch, "import os; open('pid', 'w').write(str(os.getpid()))")
    world, *_ = described(run, "coordinator")
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    assert world == describe(run.environment)


DECLARING = """
import rookery


class Declaring(rookery.StreamAlgorithm):
    outputs = ("policy", "value", rookery.Output("aside", (5,)), rookery.Output("pair", (2, 1)))
    columns = (rookery.Column("hint", "f2"), rookery.Column("pair"))
"""


def test_what_the_users_code_says_of_layouts_is_found_out_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much a core remembers, and which outputs of an algorithm's own segments keep."""
    (tmp_path / "counting.py").write_text(CORE)
    (tmp_path / "declaring.py").write_text(DECLARING)
    monkeypatch.chdir(tmp_path)
    network, algorithm = {"core": {"entry": "counting:Counting"}}, {"entry": "declaring:Declaring"}
    run = parse_run({"policy": {"network": network, "algorithm": algorithm}})
    world, fields, hooked = described(run, "coordinator")
    plans = plan_policies(run, world, fields)
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    assert not {"counting", "declaring"} & sys.modules.keys()
    kept = [("output.pair", "<f4", (2, 1)), ("output.hint", "<f2", ())]
    for plan in plans.values():
        (state,) = [field.shape for field in plan.layout.fields if field.name == "state"]
        said = [(one.name, one.dtype, one.shape) for one in plan.layout.fields if one.name.startswith("output.")]
        assert (state, said) == ((1 + 8,), kept)
    assert hooked == []
    specs = [policy_spec(plan, world) for plan in plans.values()]
    assert fields_of(specs) == fields
    assert [plan.layout for plan in plans.values()] == [plan.layout for plan in plan_policies(run, world).values()]


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


@pytest.mark.parametrize("where", ["import", "make", "__init__", "reset"])
def test_where_a_world_is_that_is_not_made_in_time_is_said_while_it_lasts_and_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    monkeypatch.setattr(description, "_SLOW_SECONDS", 0.3)
    monkeypatch.setattr(description, "_SECONDS", 0.4)
    run = hanging(tmp_path, monkeypatch, where)
    with raises(EnvironmentFault, "world_not_described", environment="its_world:make") as caught:
        described(run, "coordinator")
    place = f" in hang (its_world.py:{HANGS.splitlines().index('    while True: pass') + 1})"
    assert caught.value.reason.endswith(place)  # type: ignore[attr-defined]
    (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("coordinator: its_world:make ")]
    assert "(its_world.py:" in said


@pytest.mark.parametrize("how", ["hang", "segfault", "leave", "unknown"])
def test_a_world_is_described_however_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(description, "_CLOSE_SECONDS", 0.3 if how == "hang" else 60.0)
    run = hanging(tmp_path, monkeypatch, "close", how)
    assert described(run, "coordinator")[0].agents
    told = [facts(record.getMessage()) for record in caplog.records]
    expected = [] if how == "unknown" else ["close_failed"]  # the other process logs what is raised there
    assert [one["event"] for one in told] == expected
    for one in told:
        assert one["environment"] == "its_world:make"
        assert f" in {how} (its_world.py:" in str(one["reason"])


@pytest.mark.parametrize(
    ("how", "kind"),
    [("old", "environment_call_malformed"), ("stranger", "array_shape_wrong"), ("paid", "reward_not_number")],
)
def test_what_a_step_returns_that_it_should_not_is_said_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], how: str, kind: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        described(hanging(tmp_path, monkeypatch, "step", how), "coordinator")
    assert ended.value.code == EnvironmentFault.exit_code
    assert kinds_in(capfd.readouterr().err)[-1] == kind


@pytest.mark.parametrize("how", ["hang", "segfault", "leave", "unknown"])
def test_a_world_whose_first_step_ends_otherwise_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(description, "_TURN_SECONDS", 0.3 if how == "hang" else 60.0)
    assert described(hanging(tmp_path, monkeypatch, "step", how), "coordinator")[0].agents
    told = [facts(record.getMessage()) for record in caplog.records]
    assert [one["event"] for one in told] == ([] if how == "unknown" else ["first_turn_failed"])
    for one in told:
        assert f" in {how} (its_world.py:" in str(one["reason"])


def test_the_first_turn_of_a_world_is_legal_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "masked.py").write_text(MASKED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    described(parse_run({"environment": {"id": "masked:World"}}), "coordinator")
    assert (tmp_path / "played").read_text() == "2"


def test_what_is_wrong_is_said_though_the_world_does_not_close_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = {"agent": {"algorithm": {"name": "scripted", "entry": "no_such_module:Player"}}}
    with pytest.raises(SystemExit) as ended:
        described(hanging(tmp_path, monkeypatch, "close", policies=script), "coordinator")
    assert ended.value.code == 2
    assert kinds_in(capfd.readouterr().err)[-1] == "module_not_found"


DESCRIBES = """
import sys
from functools import partial
from pathlib import Path
import workers.coordinator
from protocol.config.run import parse_run
from workers.evaluation.description import _describe
from workers.learning.starts import take_starts
told = []
run = parse_run({"environment": {"id": "synthetic"}, "steps": 1})
_describe(run, "it", told.append, partial(take_starts, folder=Path("nowhere")))
print(len(told), "torch" in sys.modules)
"""


def test_a_run_that_starts_from_nothing_is_described_without_torch() -> None:
    """Its import takes longer than all else that is done until then, on a processor that the workers need."""
    assert subprocess.check_output([sys.executable, "-c", DESCRIBES], cwd=ROOT, text=True).split() == ["2", "False"]
