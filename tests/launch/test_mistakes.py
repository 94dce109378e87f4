"""The mistakes that newcomers made, each at the cheapest place that answers it: what the answer is and what it names.

A mistake is a function that makes it; `MISTAKES` has the answer's kind and facts beside it. Two answers have become
none: what was written is taken as it was meant.
"""

from __future__ import annotations

import ast
import fcntl
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from launch.cli import doctor, options
from launch.cli import main as command
from launch.config_loader import load
from launch.local import supervisor
from launch.run_dir import make_folder, write_config
from launch.sweeps.grid import read_sweep
from protocol.config.run import EnvironmentConfig
from protocol.config.yaml_file import read_mapping
from protocol.control.client import ControlClient
from protocol.errors import EnvironmentFault, RookeryError
from protocol.transport.curve import new_keys
from protocol.transport.sockets import Ports, check_bind, open_context
from tests.faults import raises
from tests.tools import ROOT
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import describe, make
from workers.evaluation.description import described
from workers.planning.policy_plan import plan_policies
from workers.runtime import watchdog
from workers.runtime.health import Health
from workers.tools.export import export

ODD = """
import os

import gymnasium
import numpy as np

LOOK = np.zeros(3, np.float32)
RESET = lambda: (LOOK, {})
STEP = lambda: (LOOK, 0.0, False, False, {})


class Odd(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-9, 9, (3,))

    def __init__(self, how=""):
        self.how = how

    def reset(self, *, seed=None, options=None):
        return LOOK if self.how == "reset" else RESET()

    def step(self, action):
        if self.how == "raise":
            {}["sword"]
        look, reward, *rest = STEP()
        if self.how == "old":
            return look, reward, False, {}
        if self.how == "shape":
            look = np.zeros(4, np.float32)
        if self.how == "nan":
            look = look + np.nan
        rewards = {"nan reward": np.nan, "inf reward": np.inf, "list": [0.0]}
        return look, rewards.get(self.how, reward), *rest


class Endless(Odd):
    observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))


class Graph(Odd):
    observation_space = gymnasium.spaces.Graph(gymnasium.spaces.Box(0, 1, (2,)), None)


def nothing():
    pass


def needs(arg):
    return Odd(arg)
"""
FORMS = "module:function"
Places = tuple[Path, str]
"""The test's folder, and the module in it that holds ODD."""
Mistake = Callable[[Places], object]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    name = f"odd_{abs(hash(tmp_path)):x}"
    (tmp_path / f"{name}.py").write_text(ODD)
    (tmp_path / f"{name}_oldnp.py").write_text("import numpy as np\nDTYPE = np.no_longer_there\n")
    (tmp_path / f"{name}_exits.py").write_text("import os\n\n\ndef make():\n    os._exit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path, name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


def loading(source: str, *settings: str) -> Mistake:
    return lambda _: load(source, settings)


def opening(id: str, **settings: Any) -> Mistake:
    """An environment; {} in its id is the name of the module."""
    return lambda places: make(EnvironmentConfig(id=id.format(places[1]), copies=1, settings=settings))


def playing(how: str) -> Mistake:
    def play(places: Places) -> None:
        config = EnvironmentConfig(id=f"{places[1]}:Odd", copies=1, settings={"how": how})
        with closing(CheckedEnvironment(make(config))) as environment:
            environment.reset(0)
            environment.step([np.zeros(1, np.int64)])

    return play


def planning(source: str, *settings: str) -> Mistake:
    def plan(_: Places) -> None:
        run = load(source, settings)
        plan_policies(run, describe(run.environment))

    return plan


def joining(address: str, keys: str = "") -> Mistake:
    def join(places: Places) -> None:
        for name in ("ours", "theirs"):
            new_keys(places[0] / name)
        contexts = [open_context(str(places[0] / "ours"), "coordinator"), open_context(keys, "actor")]
        try:
            ports = Ports(contexts[0], "127.0.0.1", 0, "")
            where = address.format(ports.bind({0: 6})[0])
            with closing(ControlClient(contexts[1], where, "actor", "", "node")) as client:
                client.join(1.0)
        finally:
            for context in contexts:
                context.destroy(linger=0)

    return join


def binding_a_taken_port(places: Places) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        context = open_context("", "coordinator")
        try:
            Ports(context, "127.0.0.1", taken.getsockname()[1], "").bind({0: 6})
        finally:
            context.destroy(linger=0)


def using_a_folder_in_use(places: Places) -> None:
    with (places[0] / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_folder(places[0])


def changing_the_network(places: Places) -> None:
    write_config(load("cartpole"), places[0])
    (places[0] / "state.json").write_text("{}")
    write_config(load("cartpole", ["policy.network.hidden=[7]"]), places[0])


def exporting(policy: str | None, which: str) -> Mistake:
    def do(places: Places) -> None:
        shutil.copytree(ROOT / "tests/workers/learning/checkpoints/format_2", places[0] / "checkpoints")
        write_config(load("cartpole"), places[0])
        export(places[0], policy, "safetensors", None, which)

    return do


def written(text: str, read: Callable[[Path], object] = read_mapping) -> Mistake:
    def do(places: Places) -> object:
        path = places[0] / "some.yaml"
        path.write_text(text)
        return read(path)

    return do


def asking_for_a_device(_: Places) -> None:
    supervisor._check_devices(load("cartpole", ["device=cuda"]))


def exiting(places: Places) -> None:
    described(load("cartpole", env=f"{places[1]}_exits:make"), "coordinator")


MISTAKES: dict[str, tuple[Mistake, str, dict[str, Any]]] = {
    "unknown preset": (loading("cartpol"), "run_source_unknown", {"hint": " (is cartpole meant?)"}),
    "wrong key": (
        loading("cartpole", "policy.learning_rat=1"),
        "unknown_key",
        {"key": "policy.learning_rat", "meant": " (is policy.learning_rate meant?)"},
    ),
    "key one level up": (
        loading("cartpole", "learning_rate=1"),
        "unknown_key",
        {"key": "learning_rate", "meant": " (is policy.learning_rate meant?)"},
    ),
    "wrong env id": (opening("gymnasium:CartPol-v1"), "gymnasium_id_unknown", {"environment": "CartPol-v1"}),
    "missing extra of Gymnasium": (
        opening("gymnasium:LunarLander-v3"),
        "environment_dependency_missing",
        {"environment": "gymnasium:LunarLander-v3"},
    ),
    "a module that PettingZoo lacks": (
        opening("pettingzoo:sisl.pursuit_v4"),
        "module_missing",
        {"module": "sisl", "hint": " (is pettingzoo:pettingzoo.sisl.pursuit_v5 meant?)"},
    ),
    "function not there": (opening("{}:Endles"), "name_not_in_module", {"hint": " (is Endless meant?)"}),
    "recurrent SAC": (
        loading("cartpole", "policy.algorithm=sac", "policy.network.core=gru"),
        "algorithm_not_recurrent",
        {"algorithm": "sac"},
    ),
    "7 minibatches": (
        planning("treasure-hunt", "environment.copies=32", "policy.algorithm.minibatches=7"),
        "minibatches_do_not_divide_batch",
        {"minibatches": 7},
    ),
    "DQN on Pendulum": (
        planning("cartpole", "environment={id: 'gymnasium:Pendulum-v1', copies: 2}", "policy.algorithm=dqn"),
        "agent_not_learnable",
        {"agent": "agent"},
    ),
    "old step API": (playing("old"), "environment_call_malformed", {"method": "step", "value": "4 values"}),
    "reset without info": (opening("{}:Odd", how="reset"), "environment_call_malformed", {"method": "reset"}),
    "obs of another shape": (playing("shape"), "array_shape_wrong", {"expected": [3], "value": [4]}),
    "NaN reward": (playing("nan reward"), "agent_data_invalid", {"field": "reward", "agent": "agent"}),
    "inf reward": (playing("inf reward"), "agent_data_invalid", {"field": "reward", "agent": "agent"}),
    "NaN obs": (playing("nan"), "agent_data_invalid", {"field": "observation", "agent": "agent"}),
    "reward a list": (playing("list"), "reward_not_number", {"value": [0.0]}),
    "Sequence space": (opening("{}:Endless"), "space_without_fixed_size", {"value": "Sequence"}),
    "Graph space": (opening("{}:Graph"), "space_without_fixed_size", {"value": "Graph"}),
    "function returns None": (opening("{}:nothing"), "environment_function_result", {"value": "NoneType"}),
    "missing argument": (
        opening("{}:needs"),
        "environment_function_refused_settings",
        {"value": {}, "reason": "TypeError: needs() missing 1 required positional argument: 'arg'", "at": ""},
    ),
    "port in use": (binding_a_taken_port, "ports_not_bindable", {"peer": "127.0.0.1"}),
    "wrong coordinator port": (joining("tcp://127.0.0.1:9"), "no_coordinator_answered", {"peer": "tcp://127.0.0.1:9"}),
    "address without tcp://": (joining("127.0.0.1:9"), "address_malformed", {"value": "127.0.0.1:9"}),
    "bind off loopback": (lambda _: check_bind("0.0.0.0", "", False), "bind_without_keys", {"peer": "0.0.0.0"}),
    "two runs in one folder": (using_a_folder_in_use, "folder_in_use", {}),
    "folder not writable": (lambda _: make_folder(Path("/proc/nope")), "file_not_writable", {"file": "/proc/nope"}),
    "export: which policy": (exporting(None, "newest"), "policy_option_needed", {"choices": ["iqn", "ppo"]}),
    "wrong checkpoint": (exporting("ppo", "12"), "checkpoint_not_found", {"value": "12", "choices": ["6"]}),
    "broken YAML": (
        written("environment:\n  id: [treasure_hunt\nsteps: 5\n"),
        "document_not_yaml",
        {"line": 3, "column": 6},
    ),
    "exception in step": (playing("raise"), "environment_raised", {"method": "step", "reason": "KeyError: 'sword'"}),
    "np.float in the module": (opening("{}_oldnp:make"), "module_import_failed", {"line": 2}),
    "threes.py:parallel_env": (opening("{0}.py:Odd"), "module_not_found", {"hint": " (is {}:Odd meant?)"}),
    "./threes.py:parallel_env": (opening("./{0}.py:Odd"), "module_not_found", {"hint": " (is {}:Odd meant?)"}),
    "environment.id=cartpole": (
        opening("cartpole"),
        "unknown_environment",
        {"key": "environment.id", "hint": " (is gymnasium:CartPole-v1 meant?)"},
    ),
    "algorithm a2c": (
        loading("cartpole", "policy.algorithm=a2c"),
        "choice_unknown",
        {"key": "policy.algorithm.name", "value": "a2c"},
    ),
    "learners=2": (loading("cartpole", "learners=2"), "value_invalid", {"key": "learners"}),
    "device=cuda here": (asking_for_a_device, "device_not_available", {"value": "cuda", "key": "device"}),
    "empty YAML": (written("", lambda path: load(str(path))), "document_empty", {}),
    "changed network": (changing_the_network, "run_configuration_differs", {"key": "policy.network.hidden"}),
    "os._exit(3) in the env": (
        exiting,
        "world_not_described",
        {"reason": "it ended with exit code 3 in make ({}_exits.py:5)"},
    ),
    "wrong keys": (joining("{}", "theirs"), "keys_not_accepted", {}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_what_is_wrong_and_where(
    name: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake, kind, facts = MISTAKES[name]
    monkeypatch.setattr(supervisor, "_has_gpu", lambda: False)
    with pytest.raises(RookeryError) as caught:
        mistake(places)
    said = {key: value.replace("{}", places[1]) if isinstance(value, str) else value for key, value in facts.items()}
    assert (caught.value.kind, {key: caught.value.facts.get(key) for key in facts}) == (kind, said), caught.value.coded
    assert "; " in str(caught.value), "and what to do"
    assert "\n" not in str(caught.value)


def test_what_was_written_as_people_write_it_is_taken_as_it_was_meant(places: Places) -> None:
    assert load("cartpole", ["policy.algorithm=ppo"]).policy.algorithm.name == "ppo"
    assert options.Count(min=1).convert("1e5", None, None) == 100_000
    sweep = written("run: cartpole\nsettings: {policy.learning_rate: 0.1}\n", read_sweep)(places)
    assert sweep.settings == {"policy.learning_rate": (0.1,)}  # type: ignore[attr-defined]


def test_a_world_that_hangs_is_told_with_the_function_that_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    release = threading.Event()
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: release.set())
    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback", lambda **_: None)
    vitals = Health()
    vitals.tick()

    def step() -> None:
        release.wait(60)

    threading.Thread(target=watchdog.run_watchdog, args=(vitals, 0.05, release, told.append), daemon=True).start()
    step()
    assert "it hangs in step (" in told[0]
    assert "test_mistakes.py:" in told[0]


def test_an_older_python_is_refused_by_name(tmp_path: Path) -> None:
    made = subprocess.run(
        ["make", "-s", f"{tmp_path}/bin/python", f"VENV={tmp_path}", "PY=/bin/false"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 2
    assert {"3.11", "/bin/false"} <= {*re.findall(r"[/\w.]+\w", made.stderr)}


def test_messages_name_only_files_that_are_installed() -> None:
    """Whatever text of ours a user may see, and the help of commands, names a document only where a wheel has it."""
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {f"{package}/{name}" for package, names in shipped.items() for name in names}
    named = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("launch", "protocol", "workers")
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts and ".md" in (code := path.read_text())
        for text in _texts(ast.parse(code))
        for name in re.findall(r"[\w./-]+\.md\b", text)
    }
    assert {one for one in named if one[1] not in installed} == set()
    assert all((ROOT / name).is_file() for _, name in named)
    assert ".md" not in "".join(_helps(command.main))


def _texts(tree: ast.Module) -> Iterator[str]:
    """All texts but those that stand alone, which are for readers of the code."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def _helps(one: click.Command) -> Iterator[str]:
    yield one.help or ""
    for inner in getattr(one, "commands", {}).values():
        yield from _helps(inner)


def test_a_world_that_ends_the_examination_of_a_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "python", lambda *_: [sys.executable, "-c", "import os; os.abort()"])
    with raises(EnvironmentFault, "check_crashed", reason="SIGABRT"):
        doctor.said_by("workers.tools.preflight")
