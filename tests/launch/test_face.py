"""Rookery from Python: `import rookery` costs nothing, and makes the same runs as the command."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rookery
from launch.cli.status import CoordinatorAddress, look
from launch.config_loader import load
from launch.local import supervisor
from launch.run_dir import folder_for
from protocol.config.run import EnvironmentConfig, Run
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.flows.runs import environment
from tests.tools import ROOT
from workers.environments.registry import make
from workers.metrics.history import History
from workers.tools.doctor import examine
from workers.tools.page import view_of


def test_train_makes_the_run_that_the_command_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(*given: Any) -> supervisor.RunOutcome:
        asked.append(given)
        given[2]({"policies": {}})
        return supervisor.RunOutcome(True, {"agent_steps": 10})

    monkeypatch.setattr(supervisor, "train", run)
    monkeypatch.setattr(supervisor, "train_sequential", run)
    done = rookery.train(
        "cartpole",
        settings={"policy.learning_rate": 0.01, "policy.network.hidden": [8]},
        seed=3,
        run_dir=tmp_path / "r",
    )
    assert (done.complete, done.summary, done.folder) == (True, {"agent_steps": 10}, tmp_path / "r")
    made, folder, *_ = asked[0]
    assert folder == tmp_path / "r"
    assert (made.seed, made.policy.learning_rate, made.policy.network.hidden) == (3, 0.01, (8,))
    monkeypatch.chdir(tmp_path)
    assert rookery.train(env="mine:make", progress=False, sequential=True).folder.parent == tmp_path / "runs"


def test_an_environment_named_alone_takes_the_place_of_the_presets_own() -> None:
    """What only the preset's world knows is left out; how many copies are played is kept."""
    run = load(None, env="pkg.worlds:make")
    assert (run.environment.id, run.environment.settings, run.environment.copies) == ("pkg.worlds:make", {}, 32)
    assert run.policy == load("cartpole").policy
    of_preset = load("treasure-hunt", ["environment.settings.size=3"], env="gymnasium:Acrobot-v1")
    assert (of_preset.environment.id, of_preset.environment.settings) == ("gymnasium:Acrobot-v1", {"size": 3})
    assert load(None) == load("treasure-hunt")


def test_a_mistake_is_one_sentence(tmp_path: Path) -> None:
    with raises(ConfigurationError, "unknown_key", key="stepz"):
        rookery.train("cartpole", settings={"stepz": 1}, run_dir=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def made_of(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """What `train` would run from now on."""
    made: list[Run] = []

    def run(run: Run, *_: Any) -> supervisor.RunOutcome:
        made.append(run)
        return supervisor.RunOutcome(True, {})

    monkeypatch.setattr(supervisor, "train", run)
    return made


@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        ({"policy": {"learning_rate": 0.5}}, ["policy.learning_rate=0.5"]),
        ({"policy": {"network": {"hidden": [8]}}, "steps": 7}, ["policy.network.hidden=[8]", "steps=7"]),
        ({"policy": {"algorithm": {"tau": 0.5}}}, ["policy.algorithm.tau=0.5"]),
        ({"environment": {"copies": 4}, "policies": {}}, ["environment.copies=4", "policies={}"]),
        ({"environment.settings": {"a.b": 1}}, ["environment.settings={a.b: 1}"]),
    ],
)
def test_a_section_of_settings_changes_what_is_in_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: dict[str, Any], flat: list[str]
) -> None:
    made = made_of(monkeypatch)
    rookery.train("pendulum", settings=nested, run_dir=tmp_path / "r", progress=False)
    assert made == [load("pendulum", flat)]


@pytest.mark.parametrize(
    "given", [{"settings": {"policy": {"lr": 1}}}, {"stepz": 1}, {"source": "cartpool"}, {"settings": {"a": len}}]
)
def test_who_is_refused_sees_his_own_line_and_none_of_ours(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rookery.train(**{"source": "cartpole", "run_dir": tmp_path / "r", **given})
    assert [Path(entry.path).name for entry in caught.traceback] == ["test_face.py"]
    with pytest.raises(ConfigurationError) as caught:
        rookery.load(tmp_path / "nothing")
    assert [Path(entry.path).name for entry in caught.traceback] == ["test_face.py"]


def test_a_defect_of_ours_keeps_its_whole_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.api.folder_for", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        rookery.train("cartpole", run_dir=tmp_path / "r")
    assert len(caught.traceback) > 2


def test_settings_may_be_numpys_numbers_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_of(monkeypatch)
    settings = {
        "policy.learning_rate": np.float32(0.5),
        "environment.copies": np.int64(8),
        "policy.compile": np.bool_(False),
        "policy.network.hidden": np.array([7, 8]),
        "environment.settings": {"a": np.float32(0.25)},
        "log_dir": Path("here"),
    }
    rookery.train("cartpole", settings=settings, steps=np.int64(9), run_dir=tmp_path / "r", progress=False)  # type: ignore[arg-type]
    (run,) = made
    assert (run.policy.learning_rate, run.environment.copies, run.policy.network.hidden) == (0.5, 8, (7, 8))
    assert (run.environment.settings, run.log_dir, run.steps) == ({"a": 0.25}, "here", 9)


class World:
    pass


CIRCLE: dict[str, Any] = {}
CIRCLE["of"] = CIRCLE
TRAINED = [
    ({"settings": "policy.learning_rate=1"}, "settings_not_by_key", {"value": "'policy.learning_rate=1'"}),
    ({"settings": ["steps=1"]}, "settings_not_by_key", {}),
    ({"settings": 3}, "settings_not_by_key", {"value": "3"}),
    ({"settings": ""}, "settings_not_by_key", {}),
    ({"settings": {"policy.network.hidden": {64}}}, "setting_not_plain", {"key": "policy.network.hidden"}),
    ({"settings": {"policy.learning_rate": len}}, "setting_not_plain", {"key": "policy.learning_rate"}),
    ({"settings": {"environment.settings": CIRCLE}}, "setting_not_plain", {"key": "environment.settings"}),
    ({"env": World}, "environment_not_by_name", {"hint": " (is tests.launch.test_face:World meant?)"}),
    ({"env": World()}, "environment_not_by_name", {"hint": " (is tests.launch.test_face:World meant?)"}),
    ({"env": lambda: World()}, "environment_not_by_name", {"hint": ""}),
    ({"env": 3}, "environment_not_by_name", {"value": "3", "hint": ""}),
    ({"source": World}, "argument_not_a_path", {"key": "source"}),
    ({"source": {"steps": 3}}, "argument_not_a_path", {"key": "source"}),
    ({"run_dir": 3}, "argument_not_a_path", {"key": "run_dir", "value": "3"}),
    ({"run_dir": "a\0b"}, "argument_not_a_path", {"key": "run_dir"}),
    ({"run_dir": "file"}, "folder_not_made", {"file": Path("file")}),
    ({"run_dir": "torn"}, "summary_unreadable", {"file": Path("torn/summary.json")}),
    ({"lr": 1}, "keyword_unknown", {"value": "lr", "hint": " (is settings={'policy.learning_rate': …} meant?)"}),
    ({"total_timesteps": 1}, "keyword_unknown", {"hint": " (is steps meant?)"}),
    ({"env_id": "a:b"}, "keyword_unknown", {"hint": " (is env meant?)"}),
    ({"stepz": 1}, "keyword_unknown", {"value": "stepz", "hint": ""}),
    ({"steps": "1e6"}, "value_invalid", {"key": "steps"}),
]


@pytest.mark.parametrize(("given", "kind", "facts"), TRAINED)
def test_what_train_cannot_take_is_one_sentence(
    given: dict[str, Any], kind: str, facts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "summary.json").write_text('{"complete": tr')
    made = made_of(monkeypatch)
    with raises(ConfigurationError, kind, **facts):
        rookery.train(**{"source": "cartpole", **given})
    assert made == []


@pytest.mark.parametrize("alone", [{"sequential": True}, {"settings": {"multiprocessing.enabled": False}}])
def test_one_process_is_refused_the_folder_of_a_stopped_run_of_workers(
    alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "summary.json").write_text('{"complete": false}')
    made = made_of(monkeypatch)
    with raises(ConfigurationError, "run_of_workers_stopped"):
        rookery.train("cartpole", run_dir=tmp_path, **alone)
    assert made == []


@pytest.mark.parametrize("content", [b'{"complete": tr', b"", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_torn_summary_is_one_sentence_wherever_it_is_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(content)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(load("cartpole").model_dump(mode="json")))
    reads = [
        lambda: rookery.load(tmp_path),
        lambda: folder_for(Run(), "", tmp_path),
        lambda: look(CoordinatorAddress("", "", tmp_path)),
        lambda: view_of(tmp_path, History()),
        lambda: examine(tmp_path),
    ]
    for read in reads:
        with raises(ConfigurationError, "summary_unreadable", file=path):
            read()


@pytest.mark.parametrize("given", [None, 3, "a\0b", World()])
def test_what_load_cannot_take_is_one_sentence(given: Any) -> None:
    with raises(ConfigurationError, "argument_not_a_path", key="folder"):
        rookery.load(given)


FACE = ROOT / "launch" / "face" / "rookery" / "__init__.py"
TIMED = """
import sys, time
before = time.process_time()
import rookery
took = time.process_time() - before
print(took)
print(*{"torch", "numpy", "zmq", "protocol", "workers", "launch"} & sys.modules.keys())
"""
REFUSED = """
import {name}, rookery
try:
    rookery.train
except ImportError as fault:
    print(fault.name, fault.path)
"""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script of a user's in the folder."""
    (folder / "script.py").write_text(code)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def test_the_face_is_small_and_costs_nothing_until_it_is_asked(tmp_path: Path) -> None:
    assert len(FACE.read_text().splitlines()) <= 150
    took, loaded = python(TIMED, tmp_path).stdout.splitlines()
    assert (float(took) <= 0.15, loaded) == (True, "")


def test_every_name_of_the_face_is_there_typed_and_explained() -> None:
    tree = ast.parse(FACE.read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    names = [alias.asname or alias.name for node in imports for alias in node.names]
    assert sorted(names) == sorted(rookery.__all__) == dir(rookery)
    assert [name for name in names if not getattr(rookery, name).__doc__] == []
    assert all((ROOT / folder / "py.typed").exists() for folder in ("protocol", "workers", "launch", FACE.parent))
    for absent in ("trian", "Env", "PPO"):
        with pytest.raises(AttributeError, match=f"no attribute '{absent}'"):
            getattr(rookery, absent)


def never_run() -> None:
    """mypy knows what the names of the face are: it would call a comment unused that silences nothing."""
    rookery.train(1)  # type: ignore[arg-type]
    rookery.load("runs/first").summery  # type: ignore[attr-defined]  # noqa: B018
    rookery.serve()  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["protocol", "workers", "launch"])
def test_ours_is_found_though_the_users_own_lies_beside_the_script(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("WHOSE = 'the user'\n")
    done = python(f"import rookery\nrookery.train\nimport {name}\nprint({name}.__file__)\n", tmp_path)
    assert (done.stdout.strip(), done.returncode) == (str(ROOT / name / "__init__.py"), 0), done.stderr
    assert str(tmp_path / f"{name}.py") in done.stderr  # the warning has both paths
    assert str(ROOT / name / "__init__.py") in done.stderr
    done = python(REFUSED.format(name=name), tmp_path)
    assert done.stdout.split() == [name, str(tmp_path / f"{name}.py")], done.stderr


def test_a_run_that_has_ended_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"complete": False, "agent_steps": 3}))
    run = rookery.load(tmp_path)
    assert (run.complete, run.summary["agent_steps"], run.folder) == (False, 3, tmp_path)
    for folder in (tmp_path / "none", tmp_path / "summary.json"):
        with raises(ConfigurationError, "folder_without_config", file=folder):
            rookery.load(folder)


TRAINS = "import rookery\n\n\ndef World():\n    pass\n\n\nrookery.train(env='{name}:World', steps=1, progress=False)\n"
IN_WORKERS = {
    "as it is imported": TRAINS,
    "in what it imports": "import {name}_inner\nWorld = {name}_inner.World\n",
    "as its world is made": "import rookery\n\n\ndef World():\n    return rookery.train(steps=1)\n",
    "by hand": "from launch.api import train\n\n\nclass World:\n    def __init__(self):\n        train(steps=1)\n",
}


@pytest.mark.parametrize("how", IN_WORKERS)
def test_training_in_a_worker_is_refused_with_its_line(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"trains_{[*IN_WORKERS].index(how)}"
    code = IN_WORKERS[how].format(name=name)
    file = tmp_path / f"{name}.py"
    file.write_text(code)
    if "_inner" in code:
        file = tmp_path / f"{name}_inner.py"
        file.write_text(TRAINS)
    line = 1 + next(number for number, text in enumerate(file.read_text().splitlines()) if "train(" in text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with raises(ConfigurationError, "train_in_worker", file=str(file), line=line):
        make(EnvironmentConfig(id=f"{name}:World", copies=1))


def test_a_script_without_a_guard_ends_at_once(tmp_path: Path) -> None:
    done = python(TRAINS.format(name="script"), tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"protocol.errors.ConfigurationError: {tmp_path}/script.py, line 8 ")
    assert [*(tmp_path / "runs").iterdir()] == []
