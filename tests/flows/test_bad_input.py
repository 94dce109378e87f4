"""What a user can get wrong, with real processes: one sentence, an exit code that is not 0, nothing left behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults import kinds_in, words_in
from tests.flows import runs


def told(result: subprocess.CompletedProcess[str], code: int, *kinds: str, words: Iterable[str] = ()) -> None:
    """The last line of stderr tells errors of `kinds` with `words` in it, and there is no traceback above it."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert kinds_in(last) == [*kinds], result.stderr
    assert {*words} <= words_in(last), result.stderr
    assert result.stdout == ""


NOWHERE = {"id": "nowhere"}


@pytest.mark.parametrize("how", [(), ("--sequential",)], ids=["workers", "sequential"])
@pytest.mark.parametrize(
    ("keys", "kind", "words"),
    [
        ({"environment": NOWHERE}, "unknown_environment", ["rookery", "'nowhere'", "treasure_hunt"]),
        ({"policies": {"agent_9": {}}}, "policy_not_used", ["rookery", "'agent_9'", "agent_0", "agent_1"]),
    ],
    ids=["environment", "policy"],
)
def test_what_only_the_world_can_tell_is_told_before_anything_starts(
    tmp_path: Path, memory_dir: Path, keys: dict[str, Any], kind: str, words: list[str], how: tuple[str, ...]
) -> None:
    result = runs.train(runs.config(**keys), tmp_path, *how)
    told(result, 2, kind, words=words)
    assert not (tmp_path / "run").exists()
    assert runs.files(memory_dir) == []


def test_a_batch_that_cannot_be_divided_is_refused_K11(tmp_path: Path) -> None:
    data = runs.config({"name": "ppo", "minibatches": 3})
    told(runs.train(data, tmp_path), 2, "minibatches_do_not_divide_batch", words=["64", "3"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("worker", ["actor", "sequential"])
def test_a_world_that_gives_nan_is_named_with_agent_and_field(tmp_path: Path, memory_dir: Path, worker: str) -> None:
    """An actor's fault ends the run once its restarts are used up; what was learned is kept."""
    data = runs.paced(tmp_path, 8_000, fault="nan", after=40, restarts=0)
    (tmp_path / "worlds_of_this_test.py").write_text(runs.WORLDS.replace("workers.actor", f"workers.{worker}"))
    result = runs.train(data, tmp_path, "--no-progress", *(["--sequential"] if worker == "sequential" else []))
    end = "worker_lost" if worker == "actor" else "sequential_run_failed"
    told(result, 1, "agent_data_invalid", end, words=["reward", "nan"])
    assert re.search(r"agent_\d", result.stderr.strip().splitlines()[-1])
    if worker == "actor":
        assert runs.summary_of(tmp_path)["complete"] is False
    assert runs.files(memory_dir) == []


def test_a_taken_port_is_named_with_the_option_to_choose_another(tmp_path: Path, free_port_block: int) -> None:
    path = str(runs.write(runs.config(), tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port_block))
        taken.listen()
        bind = f"127.0.0.1:{free_port_block}"
        result = runs.rookery("coordinator", path, "--run-dir", "run", "--bind", bind, cwd=tmp_path)
    told(result, 2, "ports_not_bindable", words=[str(free_port_block), "127.0.0.1"])


def test_a_socket_that_others_can_reach_needs_insecure(tmp_path: Path) -> None:
    path = str(runs.write(runs.config(), tmp_path))
    result = runs.rookery("coordinator", path, "--run-dir", "run", "--bind", "0.0.0.0:5600", cwd=tmp_path)
    told(result, 2, "bind_without_keys", words=["0.0.0.0"])


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_a_coordinator_that_is_not_there_is_waited_for_and_named(
    tmp_path: Path, free_port_block: int, role: str
) -> None:
    address = f"tcp://127.0.0.1:{free_port_block}"
    result = runs.rookery(role, "--coordinator", address, "--patience", "1", cwd=tmp_path)
    told(result, 4, "no_coordinator_answered", words=[role, str(free_port_block), "1"])


@pytest.mark.parametrize(
    ("options", "kinds", "words"),
    [
        (("--coordinator", "localhost"), ["address_malformed"], ["learner", "'localhost'"]),
        ((), [], ["Missing", "'--coordinator'."]),
    ],
)
def test_an_address_that_is_none_is_told(
    tmp_path: Path, options: tuple[str, ...], kinds: list[str], words: list[str]
) -> None:
    told(runs.rookery("learner", *options, cwd=tmp_path), 2, *kinds, words=words)


def test_strangers_and_doubles_are_refused_while_the_run_goes_on(
    tmp_path: Path, memory_dir: Path, free_port_block: int
) -> None:
    """A second claim of a living identity, one actor too many, an unknown name, another release: each is told its own
    sentence, and those who work go on undisturbed."""
    address = f"tcp://127.0.0.1:{free_port_block}"
    join = ["--coordinator", address, "--patience", "120"]
    path = str(runs.write(runs.paced(tmp_path, 10_000_000, pause=0.01), tmp_path))
    hand = ["coordinator", "--open", path, "--run-dir", str(tmp_path / "run"), "--bind", address.removeprefix("tcp://")]
    with ExitStack() as stack:
        workers = [stack.enter_context(runs.started(hand, tmp_path, "coordinator"))]
        for role, name in (("learner", "learner-agent_0"), ("learner", "learner-agent_1"), ("actor", "actor-0")):
            workers.append(stack.enter_context(runs.started([role, *join, "--name", name], tmp_path, name)))
        runs.until(lambda: runs.agent_steps(tmp_path), what="the run is on")
        pid = workers[-1].popen.pid
        foreign = (
            "import protocol; protocol.RELEASE = '9.9'; protocol.OLDEST_SCHEMA = protocol.SCHEMA = 3; "
            "from workers.relay import command; command()"
        )
        learners = ["learner-agent_0", "learner-agent_1"]
        refused = {
            "identity_in_use": (["actor", *join, "--name", "actor-0"], ["actor", "'actor-0'", str(pid)]),
            "all_places_taken": (["actor", *join], ["actor", "actors"]),
            "identity_unknown": (["learner", *join, "--name", "learner-x"], ["learner", "'learner-x'", *learners]),
            "schemas_differ": ([runs.PYTHON, "-c", foreign, *join], ["relay", "9.9", "3", "2"]),
        }
        strangers = {
            kind: stack.enter_context(runs.started(command, tmp_path, f"stranger-{kind}"))
            for kind, (command, _) in refused.items()
        }
        for kind, stranger in strangers.items():
            assert stranger.wait() == 3, stranger.said
            assert "Traceback" not in stranger.said
            last = stranger.said.splitlines()[-1]
            assert kinds_in(last) == [kind], stranger.said
            assert {*refused[kind][1]} <= words_in(last), stranger.said
        made = runs.agent_steps(tmp_path)
        runs.until(lambda: runs.agent_steps(tmp_path) > made, what="the run goes on")
        workers[0].popen.send_signal(signal.SIGINT)
        assert [worker.wait() for worker in workers] == [9, 0, 0, 0]
    summary = runs.summary_of(tmp_path)
    assert (summary["complete"], summary["restarts"]) == (False, {})
    assert runs.balanced(summary["segments"])
    assert runs.files(memory_dir) == []


def test_a_users_folder_called_like_ours_is_never_taken_for_it(tmp_path: Path) -> None:
    for name in ("workers", "protocol", "launch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    result = runs.train(runs.config(steps=1_600), tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_folder_in_use_is_refused_and_its_configuration_stays(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.paced(tmp_path, 10_000_000, pause=0.01)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path), what="the run is on")
        kept = (tmp_path / "run" / "config.yaml").read_text()
        for more in ((), ("--sequential",)):
            result = runs.train({**data, "seed": 5}, tmp_path, *more)
            told(result, 2, "folder_in_use", words=[str(tmp_path / "run")])
        assert (tmp_path / "run" / "config.yaml").read_text() == kept
        worker.popen.send_signal(signal.SIGINT)
        assert worker.wait() == 1
    assert runs.files(memory_dir) == []


@pytest.mark.parametrize(
    ("options", "code", "kind", "words"),
    [
        (("--run-dir", "/proc/xx"), 10, "file_not_writable", ["/proc/xx", "--run-dir"]),
        (("--run-dir", "tiny.yaml/x", "--sequential"), 10, "file_not_writable", ["directory", "--run-dir"]),
        (("--set", "log_dir=/proc/x"), 2, "log_folder_outside_run", ["'/proc/x'"]),
    ],
)
def test_a_folder_that_cannot_be_is_told(
    tmp_path: Path, options: tuple[str, ...], code: int, kind: str, words: list[str]
) -> None:
    told(runs.train(runs.config(), tmp_path, *options), code, kind, words=["rookery", *words])
    assert not (tmp_path / "run").exists()
