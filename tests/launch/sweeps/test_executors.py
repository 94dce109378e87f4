"""Many runs on several machines: shared out by cores, held by `ssh`, refused where the folder is not shared (J6)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from launch.cli.main import main
from launch.sweeps import runs as module
from launch.sweeps.executors import Machines
from launch.sweeps.grid import Trial, read_sweep, trials_of
from launch.sweeps.runs import run_all
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.launch.cli.test_sweep import sweep_file
from tests.launch.cluster.test_plan import SSH

ROOKERY = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
# a stand-in for `rookery train CONFIG --run-dir DIR ...`: earns 1, and says where it was
import json, os, pathlib, shutil, sys
config, folder = sys.argv[2], pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
folder.mkdir()
shutil.copy(config, folder / "config.yaml")
(folder / "where").write_text(os.getcwd())
if "--sequential" not in sys.argv:
    sys.exit("the floor gave way")
(folder / "summary.json").write_text(json.dumps({{"complete": True, "returns": {{"agent": {{"last": 1.0}}}}}}))
"""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Machines `a` and `b` to which the `ssh` in front of PATH leads."""
    for name in ("bin", "machines/a", "machines/b"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in (("ssh", SSH), ("rookery-there", ROOKERY)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_HOSTS", str(tmp_path / "machines"))
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.02)
    return {name: {"cores": cores, "rookery": "rookery-there"} for name, cores in (("a", 2), ("b", 4))}


def trials(folder: Path, **keys: Any) -> tuple[list[Trial], Machines]:
    wanted = read_sweep(sweep_file(folder, **keys))
    return trials_of(wanted, folder / "out"), Machines(wanted.hosts, wanted.cores)


def test_runs_are_shared_out_to_machines_by_their_cores_J6(tmp_path: Path, two: dict[str, Any]) -> None:
    found, machines = trials(tmp_path, seeds=[0, 1, 2, 3], hosts=two, sequential=True, cores_per_run=2)
    told: list[str] = []
    machines.check(tmp_path / "out")
    assert run_all(found, machines, True, told.append) == []
    where = [Path((trial.folder / "where").read_text()).name for trial in found]
    assert where[:3] == ["b", "a", "b"]  # where most room is left
    assert where[3] in ("a", "b")  # where room came first
    assert "runs seed-1: started on a" in told
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["runs"]


@pytest.mark.parametrize("left", ["counters/actor-0.1", "counters/learner-0.1", "summary.json"])
def test_a_run_in_one_process_that_was_stopped_or_died_begins_anew(
    tmp_path: Path, two: dict[str, Any], left: str
) -> None:
    (one,), machines = trials(tmp_path, seeds=[0], hosts=two, sequential=True)
    (one.folder / left).parent.mkdir(parents=True)
    (one.folder / left).write_text('{"complete": false}')
    assert run_all([one], machines, True, lambda _: None) == []
    assert not (one.folder / "counters").exists()


def test_what_fails_on_a_machine_is_told_with_its_last_words(tmp_path: Path, two: dict[str, Any]) -> None:
    found, machines = trials(tmp_path, seeds=[0], hosts=two)
    told: list[str] = []
    assert run_all(found, machines, False, told.append) == found
    assert "runs seed-0: failed: the floor gave way" in told


def test_a_machine_that_does_not_see_the_folder_or_is_not_there_is_refused_before_the_first_run(
    tmp_path: Path, two: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sweep_file(tmp_path, seeds=[0], hosts=two)
    for code, kind, named in ((1, "host_without_shared_folder", str(tmp_path)), (255, "host_unreachable", "no route")):
        (tmp_path / "bin" / "ssh").write_text(f"#!/bin/sh\necho no route >&2\nexit {code}\n")
        told = CliRunner().invoke(main, ["sweep", str(path), "--out", str(tmp_path / "out")])
        assert told.exit_code != 0
        assert kinds_in(told.output) == [kind]
        assert named in told.output
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("command", ["sweep", "pbt"])
def test_a_dry_run_tells_where_the_first_runs_would_be_and_starts_nothing(
    tmp_path: Path, two: dict[str, Any], command: str
) -> None:
    rates = {"low": 0.1, "high": 0.2} if command == "pbt" else [0.1, 0.2, 0.3, 0.4]
    more: dict[str, Any] = {"members": 4, "exploit": 0.25} if command == "pbt" else {}
    path = sweep_file(tmp_path, seeds=[0], hosts=two, settings={"policy.learning_rate": rates}, **more)
    told = CliRunner().invoke(main, [command, str(path), "--out", str(tmp_path / "out"), "--dry-run"])
    assert told.exit_code == 0, told.output
    assert [line.partition(":")[0] for line in told.output.splitlines()[:3]] == ["b", "a", "b"]
    assert told.output.splitlines()[3] == "4 runs, 0 of them done"
    assert not (tmp_path / "out").exists()


def test_what_fits_on_no_machine_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "run_needs_more_cores", count=2, holder="sweep", limit=1, where=" on a host"):
        trials(tmp_path, seeds=[0], hosts={"a": {"cores": 1}, "b": {"cores": 1}})
    with raises(ConfigurationError, "ssh_name_like_option", key="hosts.a.ssh"):
        trials(tmp_path, seeds=[0], hosts={"a": {"ssh": "-oProxyCommand=x"}})
