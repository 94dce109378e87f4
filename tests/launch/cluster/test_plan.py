"""Many machines: the plan that ssh and Slurm have in common, and what is held by ssh."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner

from launch.cli.main import main
from launch.cluster.hosts import _check_keys, _living, _Session
from launch.cluster.plan import Command, Hosts, plan, read_hosts
from launch.cluster.slurm import batch
from launch.cluster.ssh import HostFailed, Remote, copies, end_all
from launch.local.restart_budget import RestartBudget
from launch.run_plan import ResourcePlan
from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from protocol.transport.curve import ROLES, new_keys
from tests.faults import kinds_in, raises
from tests.waiting import until

TWO = ResourcePlan(["a", "b"], ["learner-a", "learner-b"], 0, 0)
HOSTS = {
    "trainer": {"ssh": "me@trainer", "address": "10.0.0.1", "gpus": 2, "folder": "work"},
    "node-1": {"actors": 4, "rookery": "/opt/rookery/bin/rookery"},
    "node-2": {"actors": 1},
}


def hosts(machines: dict[str, Any] = HOSTS, **keys: Any) -> Hosts:
    """Of these machines."""
    return Hosts.model_validate({"hosts": machines, **keys})


def planned(machines: dict[str, Any] = HOSTS, outline: ResourcePlan = TWO, **keys: Any) -> list[Command]:
    """The plan for a run of as many places as needed."""
    return plan(hosts(machines), parse_run({"actors": 5, **keys}), outline)


def test_learners_go_to_gpus_actors_where_they_are_asked_for_and_a_relay_to_a_host_with_several() -> None:
    found = [(command.host, command.role, command.gpu) for command in planned()]
    assert found[:3] == [("trainer", "coordinator", None), ("trainer", "learner", 0), ("trainer", "learner", 1)]
    assert found[3:] == [
        ("node-1", "relay", None),
        *[("node-1", "actor", None)] * 4,
        ("node-2", "actor", None),
    ]


def test_no_two_workers_of_a_host_share_a_port_and_all_know_the_coordinator() -> None:
    for many in (
        planned(),
        planned({"one": {"actors": 8}}, ResourcePlan([], [f"learner-{i}" for i in range(40)], 0, 0), actors=8),
    ):
        bound = [(command.host, command.words[command.words.index("--bind") + 1]) for command in many]
        assert len(set(bound)) == len(bound)
        assert all(int(port.rpartition(":")[2]) % 10 == 0 for _, port in bound)
        known = {c.words[c.words.index("--coordinator") + 1] for c in many if c.role != "coordinator"}
        assert len(known) == 1
    assert known == {"tcp://one:5600"}


def test_workers_are_called_in_the_run_as_in_the_plan() -> None:
    """The coordinator is no member; an evaluator is called so without being told."""
    for command in planned(evaluation={"every_seconds": 60})[1:]:
        if command.role == "evaluator":
            assert command.name == "evaluator-0"
        else:
            assert command.words[command.words.index("--name") + 1] == command.name


def test_a_run_that_evaluates_itself_does_so_beside_its_coordinator() -> None:
    (found,) = (command for command in planned(evaluation={"every_seconds": 60}) if command.role == "evaluator")
    assert (found.host, found.words[1]) == ("trainer", "evaluator")
    assert "0.0.0.0:6190" in found.words


def test_ranks_need_a_word_that_the_network_is_trusted_and_no_relay_stands_between() -> None:
    run = parse_run({"actors": 5, "policies": {"a": {"ranks": 3}}})
    outline = ResourcePlan(["a"], [f"learner-a-{rank}" for rank in range(3)], 0, 0)
    with raises(ConfigurationError, "ranks_without_keys", policy="a", key="insecure_ranks: true"):
        plan(hosts(), run, outline)
    found = plan(hosts(insecure_ranks=True), run, outline)
    assert {command.role for command in found} == {"coordinator", "learner", "actor"}
    words = [command.words for command in found if command.role == "learner"]
    # each claims its place, so that every start is the same
    assert [one[-3:] for one in words] == [("--insecure", "--name", f"learner-a-{rank}") for rank in range(3)]
    assert batch(hosts(insecure_ranks=True), run, outline).count("--insecure --name learner-") == 3


def test_a_host_gets_the_secrets_of_its_roles_alone() -> None:
    for name in HOSTS:
        mine = [
            words for words in copies(hosts(), planned(), Path("run.yaml")) if words[0] == "scp" and name in words[-1]
        ]
        sent = {Path(word).name for word in mine[0] if word.endswith(".secret")}
        assert sent == {f"{command.role}.secret" for command in planned() if command.host == name}
        assert {Path(word).name for word in mine[0] if word.endswith(".public")} == {f"{role}.public" for role in ROLES}


@pytest.mark.parametrize(
    ("machines", "kind", "facts"),
    [
        ({"a": {"actors": 9}}, "too_many_actors", {"count": 9, "limit": 8}),
        ({"a": {}}, "hosts_without_actors", {}),
        ({"a": {"actors": 3}, "b": {"actors": 4}}, "hosts_with_too_few_actors", {"count": 7, "limit": 8}),
    ],
)
def test_hosts_that_do_not_fit_the_run_are_refused(machines: dict[str, Any], kind: str, facts: dict[str, int]) -> None:
    with raises(ConfigurationError, kind, **facts):
        planned(machines, actors=8)


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("hosts: {}", "hosts_file_empty", {}),
        ("hosts: {a: {gpu: 1}}", "unknown_key", {"key": "hosts.a.gpu", "meant": " (is hosts.a.gpus meant?)"}),
        ("hosts: {a: {actors: x}}", "value_invalid", {"key": "hosts.a.actors"}),
        ("run: cartpole", "key_missing", {"key": "hosts"}),
        ("{", "document_not_yaml", {}),
        ("keys: ~/keys\nhosts: {a: {}}", "path_with_home_sign", {"key": "keys", "value": "~/keys"}),
        ("hosts: {a: {ssh: -oX=y}}", "ssh_name_like_option", {"key": "hosts.a.ssh"}),
        ("hosts: {a: {}}\nspeed: 1", "settings_file_unknown_key", {"key": "speed"}),
    ],
)
def test_a_file_that_means_nothing_is_one_sentence(tmp_path: Path, text: str, kind: str, facts: dict[str, str]) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    with raises(ConfigurationError, kind, file=path, **facts):
        read_hosts(path)


def test_an_ipv6_address_stands_in_brackets_and_all_addresses_are_bound() -> None:
    lines = [command.line for command in planned({**HOSTS, "trainer": {"address": "fd00::1", "gpus": 2}})]
    assert all("--coordinator 'tcp://[fd00::1]:5600'" in line for line in lines[1:])
    assert all("--bind '[::]:" in line for line in lines)
    assert "--advertise fd00::1" in lines[0]


def test_slurm_gets_a_step_for_each_worker_and_bash_finds_no_fault_with_it() -> None:
    script = batch(hosts(), parse_run({"actors": 5}), TWO)
    assert script.count("\nkept srun ") == len(planned())
    assert "#SBATCH --nodes=3\n" in script
    assert "#SBATCH --cpus-per-task=5\n#SBATCH --mem=4608M\n" in script, "four actors and a relay on one node"
    assert all(" --cpus-per-task=1 --mem=" in line for line in script.splitlines() if line.startswith("kept srun "))
    assert "--coordinator tcp://${nodes[0]}:$((ports + 5600))" in script
    assert "--advertise ${nodes[2]}" in script
    assert "NODE" not in script.replace("NODELIST", "")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_each_seed_of_an_array_has_a_folder_of_its_own(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    (slurm / "bin" / "srun").write_text('#!/bin/sh\necho "$@" >> told\n')
    script = batch(hosts(folder="my runs/one"), parse_run({"actors": 5, "seed": 1}), TWO, "1-4%2")
    assert "#SBATCH --array=1-4%2\n" in script
    subprocess.run(["bash", "-c", script], cwd=slurm, check=True, timeout=60)
    assert yaml.safe_load((slurm / "my runs" / "one-3.yaml").read_text())["seed"] == 3
    told = (slurm / "told").read_text()
    assert "--run-dir my runs/one-3 --bind 0.0.0.0:7600 " in told
    assert "--output=my runs/one-3/logs/coordinator.out " in told


@pytest.mark.parametrize("seeds", ["", "0-4,7%2"])
def test_what_is_no_list_of_seeds_is_refused(seeds: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"hosts": HOSTS}))
    words = ["hosts", "slurm", str(tmp_path / "hosts.yaml"), "--seeds", f"{seeds}; rm -r ."]
    assert kinds_in(CliRunner().invoke(main, words).output) == ["seeds_not_list"]


def test_dry_run_prints_every_command_and_runs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(yaml.safe_dump({"set": ["actors=5"], "hosts": HOSTS}))
    monkeypatch.setattr("launch.cluster.hosts.outline_of", lambda run: TWO)
    monkeypatch.setenv("PATH", str(tmp_path))
    printed = CliRunner().invoke(main, ["hosts", "up", str(path), "--dry-run"], catch_exceptions=False).output
    lines = printed.splitlines()
    assert len(lines) == len(copies(hosts(), planned(), Path("run.yaml"))) + len(planned())
    assert "ssh -o BatchMode=yes" in lines[0]
    as_json = CliRunner().invoke(main, ["hosts", "up", str(path), "--dry-run", "--json"], catch_exceptions=False).output
    assert [entry["name"] for entry in json.loads(as_json)] == [command.name for command in planned()]


SSH = """#!/bin/sh
# a stand-in: what would run on HOST runs here, in a folder of its own
for host; do last=$previous; previous=$host; done
cd "$FAKE_HOSTS/$last" && exec sh -c "$host"
"""


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `ssh a` and `ssh b` lead."""
    folder = tmp_path / "machines"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_HOSTS", str(folder))
    return folder


WORKER = """
import signal, sys, time
def end(*_):
    print("told to end", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("works", flush=True)
time.sleep(600)
"""


def remote(machines: Path, source: str, seconds: float = 20) -> Remote:
    """A Python program on host `a`."""
    command = Command("a", "actor", "actor-a-0", ".", (sys.executable, "-c", source))
    return Remote(hosts({"a": {}, "b": {}}), command, machines.parent / "logs", seconds, 1)


def said(worker: Remote, words: str) -> None:
    """Waits until it has written that."""
    until(lambda: words in worker.output.read_text(), what=f"it says {words!r}")


def test_a_worker_ends_in_order_when_its_connection_does_and_its_code_comes_back(machines: Path) -> None:
    worker = remote(machines, WORKER)
    said(worker, "works")
    assert worker.code is None
    assert end_all([worker], 60) == []
    assert worker.code == 7
    assert worker.last_words(1) == "told to end"


def test_a_worker_that_does_not_listen_is_killed_there(machines: Path) -> None:
    worker = remote(machines, WORKER.replace("sys.exit(7)", "return"), seconds=1)
    said(worker, "works")
    assert end_all([worker], 60) == []
    assert worker.code == 128 + 9


def test_a_worker_that_ends_by_itself_leaves_nothing_that_holds_its_connection(machines: Path) -> None:
    worker = remote(machines, "raise SystemExit(3)")
    assert worker.wait(60)
    assert worker.code == 3
    end_all([worker], 1)


def test_status_and_down_say_where_to_look_when_nothing_was_started(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(yaml.safe_dump({"hosts": HOSTS}))
    for command, kind in (("down", "hosts_not_running"), ("status", "hosts_never_started")):
        refused = CliRunner().invoke(main, ["hosts", command, str(path), "--logs", str(tmp_path / "logs")])
        assert refused.exit_code == 2
        assert kinds_in(refused.output) == [kind]
        assert str(tmp_path / "logs") in refused.output


SRUN = """#!/bin/sh
trap 'trap "" TERM; sleep 0.5; echo ended >> told; exit 9' TERM
echo $$ >> steps
echo started >> told
while :; do sleep 0.1; done
"""


CANCEL = """#!/bin/sh
[ "$*" = "--signal=TERM 27" ] && kill -TERM $(cat steps) 2>/dev/null
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where jobs run on three nodes, each step as `bin/srun` says; `told` is what these wrote."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "told").touch()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n"), ("scancel", CANCEL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setenv("SLURM_JOB_ID", "27")
    return tmp_path


def submitted(slurm: Path, starts: int) -> subprocess.Popen[bytes]:
    """A job whose steps were started so often."""
    script = batch(hosts(), parse_run({"actors": 5, "restarts": 2}), TWO)
    job = subprocess.Popen(["bash", "-c", script], cwd=slurm, stderr=subprocess.DEVNULL)
    until(lambda: (slurm / "told").read_text().count("started") >= starts, what=f"{starts} steps were started")
    return job


def test_a_job_that_is_out_of_time_ends_in_order_before_its_script(slurm: Path) -> None:
    many = len(planned())
    job = submitted(slurm, many)
    job.terminate()
    assert job.wait(60) == 9  # the coordinator's
    assert (slurm / "told").read_text().count("ended") == many


def test_a_step_that_dies_is_started_again_as_often_as_the_run_says_and_one_that_cannot_begin_is_not(
    slurm: Path,
) -> None:
    dies = """echo $$ >> steps; echo started >> told
case "$*" in *learner-a*) exit 1;; *learner-b*) exit 2;; esac
trap 'trap "" TERM; echo ended >> told; exit 9' TERM
while :; do sleep 0.1; done
"""
    (slurm / "bin" / "srun").write_text(f"#!/bin/sh\n{dies}")
    job = submitted(slurm, len(planned()) + 2)
    kept = len(planned()) - 2
    until(lambda: len(psutil.Process(job.pid).children()) == kept, what="two steps are given up")
    job.terminate()
    assert job.wait(60) == 9
    told = (slurm / "told").read_text()
    assert told.count("started") == len(planned()) + 2
    assert told.count("ended") == kept


def test_paths_that_begin_at_the_root_and_strange_ones_are_the_same_for_scp_and_the_worker() -> None:
    read = hosts({"one": {"actors": 1, "folder": "my work"}}, keys="/etc/k", folder="/scratch/me/run/")
    commands = plan(read, parse_run({"actors": 1}), TWO)
    to = [words[-1] for words in copies(read, commands, Path("run.yaml"))]
    assert to == [
        "mkdir -p /etc/k && chmod 700 /etc/k",
        "one:/etc/k/",
        "mkdir -p /scratch/me",
        "one:/scratch/me/run.yaml",
    ]
    assert commands[0].words[2:5] == ("/scratch/me/run.yaml", "--run-dir", "/scratch/me/run")
    assert commands[0].line.startswith("cd 'my work' && exec ")


class Dead:
    """A worker that ended with `code`."""

    def __init__(self, code: int) -> None:
        self.command, self.budget = planned()[-1], RestartBudget(3)
        self.code, self.again_at, self.lost, self.done_without = code, 0.0, False, False

    def last_words(self, lines: int = 3) -> str:
        """Why."""
        return "cannot bind"


def test_who_finds_its_ports_taken_after_a_lost_connection_is_started_again(tmp_path: Path) -> None:
    session = _Session(hosts(), parse_run({}), [], tmp_path)
    worker: Any = Dead(2)
    with raises(HostFailed, "remote_worker_lost", peer="actor-4", status=2, reason="cannot bind"):
        session._look_after(worker)
    worker.code = 255
    for code in (2, 3):  # its predecessor has its ports, then its place
        session._look_after(worker)
        assert worker.again_at > time.monotonic() + 5
        worker.code, worker.again_at = code, 0.0
    worker.code = 1
    session._look_after(worker)
    assert not worker.lost


def test_a_run_goes_on_without_a_relay_that_cannot_be_kept_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that finds another on its node."""
    session, told = _Session(hosts(), parse_run({}), [], tmp_path), list[str]()
    monkeypatch.setattr(session._display, "tell", told.append)
    worker: Any = Dead(3)
    worker.command = next(command for command in planned() if command.role == "relay")
    assert [session._look_after(worker) for _ in range(3)] == [True, False, False]
    (line,) = told
    assert line.startswith("relay-node-1 on node-1: cannot bind")


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda keys: (keys / "actor.secret").unlink(), "key_file_unreadable"),
        (lambda keys: (keys / "simulator.public").unlink(), "key_file_unreadable"),
        (lambda keys: (keys / "relay.secret").write_text(""), "key_file_malformed"),
        (lambda keys: shutil.copy(keys / "learner.secret", keys / "actor.secret"), "key_pair_mismatch"),
        (lambda keys: (keys / "actor.secret").chmod(0o644), "key_file_readable_by_others"),
        (lambda keys: shutil.rmtree(keys), "keys_missing"),
        (lambda keys: (keys / "evaluator.secret").unlink(), None),
    ],
)
def test_keys_that_a_role_of_the_plan_lacks_are_told_as_keys_before_anything_is_copied(
    tmp_path: Path, spoil: Callable[[Path], Any], kind: str | None
) -> None:
    keys = tmp_path / "keys"
    new_keys(keys)
    spoil(keys)
    read = hosts(keys=str(keys))
    if kind is None:
        _check_keys(read, planned())  # nobody evaluates
        return
    with raises(ConfigurationError, kind):
        _check_keys(read, planned())


def test_down_ends_an_up_that_still_copies_and_never_whom_an_old_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.json").write_text(json.dumps({"pid": 1, "workers": [{}] * 9}))
    session, found = _Session(hosts(), parse_run({}), [], tmp_path), []

    def copy() -> None:
        found.append(_living(tmp_path))
        raise HostFailed("host_copy_failed", command="scp", reason="no way")

    monkeypatch.setattr(session, "_copy", copy)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with raises(HostFailed, "host_copy_failed", reason="no way"):
            session.go()
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)
    assert found == [os.getpid()]
