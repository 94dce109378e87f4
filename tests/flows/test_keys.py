"""A run whose workers know each other by keys, and those who have the wrong ones."""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.transport.curve import new_keys
from tests.faults import kinds_in
from tests.flows import runs
from tests.workers.coordination.dashboard.asking import ask


def begin(stack: ExitStack, folder: Path, base: int, role: str, *options: str, name: str = "") -> runs.Worker:
    """One worker with keys of its own; a coordinator that binds every interface."""
    if role == "coordinator":
        path = str(runs.write(runs.config(steps=3_200), folder))
        command = [role, path, "--run-dir", str(folder / "run"), "--bind", f"0.0.0.0:{base}", *options]
    else:
        command = [role, "--coordinator", f"tcp://127.0.0.1:{base}", *options]
    return stack.enter_context(runs.started(command, folder, name or role))


@pytest.mark.parametrize("transport", [pytest.param("auto", marks=pytest.mark.slow), "tcp"])
def test_a_whole_run_with_keys_off_loopback(tmp_path, memory_dir, free_port_block, transport):
    """Every socket is encrypted and authenticated: control, segments, weights (which a learner asks for that consults
    an auxiliary, as well), acknowledgements."""
    new_keys(tmp_path / "keys")
    keys = ["--keys", str(tmp_path / "keys")]
    data = runs.config(steps=3_200, transport=transport)
    if consults := transport == "tcp":
        data = runs.paced(tmp_path, 10_000_000, pause=0.002, transport=transport, log_interval=5)
        data["policy"]["algorithm"] = runs.curious()
        data["auxiliaries"] = {"novelty": runs.NOVELTY}
    log = tmp_path / "run" / "logs" / "learner-agent_0.log"

    def consulted() -> bool:
        return any(int(version) > 1 for version in re.findall(r"intrinsic_version=(\d+)", log.read_text()))

    with ExitStack() as stack:
        path = str(runs.write(data, tmp_path))
        command = ["coordinator", path, "--run-dir", str(tmp_path / "run"), "--bind", f"0.0.0.0:{free_port_block}"]
        command += ["--advertise", "127.0.0.1", *keys]
        workers = [stack.enter_context(runs.started(command, tmp_path, "coordinator"))]
        runs.until((tmp_path / "run" / "coordinator.json").exists, what="coordinator is up")
        bind = ["--bind", "0.0.0.0:0", "--advertise", "127.0.0.1", "--patience", "120", *keys]
        for number in range(3 if consults else 2):
            learner = begin(stack, tmp_path, free_port_block, "learner", *bind, name=f"learner-{number}")
            workers.append(learner)
        workers.append(begin(stack, tmp_path, free_port_block, "actor", "--patience", "120", *keys))
        if consults:
            runs.until(lambda: log.exists() and consulted(), what="the auxiliary's weights have come")
            runs.kill(workers[0].popen.pid, signal.SIGINT)
        for worker in workers:
            assert worker.wait() == (9 if consults and worker is workers[0] else 0), worker.said
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is not consults
    assert runs.balanced(summary["segments"])
    assert summary["segments"]["in_flight"] == 0
    assert summary["segments"]["dropped"]["undelivered"] == 0
    assert runs.files(memory_dir) == []


def test_without_the_right_keys_nobody_gets_in(tmp_path, free_port_block):
    """Threats: no keys; somebody else's keys; the keys of another role."""
    new_keys(tmp_path / "keys")
    new_keys(tmp_path / "theirs")
    (tmp_path / "mixed").mkdir()
    for path in (tmp_path / "keys").glob("*"):
        (tmp_path / "mixed" / path.name).write_bytes(path.read_bytes())
        (tmp_path / "mixed" / path.name).chmod(0o600)
    for kind in ("public", "secret"):  # an actor's keys under a learner's name
        (tmp_path / "mixed" / f"learner.{kind}").write_bytes((tmp_path / "keys" / f"actor.{kind}").read_bytes())
    with ExitStack() as stack:
        coordinator = begin(stack, tmp_path, free_port_block, "coordinator", "--keys", str(tmp_path / "keys"))
        runs.until((tmp_path / "run" / "coordinator.json").exists, what="coordinator is up")
        patience = ["--patience", "3"]
        none = begin(stack, tmp_path, free_port_block, "actor", *patience, name="none")
        other = begin(
            stack, tmp_path, free_port_block, "actor", *patience, "--keys", str(tmp_path / "theirs"), name="other"
        )
        mixed = begin(
            stack, tmp_path, free_port_block, "learner", *patience, "--keys", str(tmp_path / "mixed"), name="mixed"
        )
        for refused in (none, other):
            assert refused.wait() == 4, refused.said
            assert kinds_in(refused.said) == ["keys_not_accepted"]
        assert mixed.wait() == 3, mixed.said
        assert "role_key_mismatch" in kinds_in(mixed.said)
        http = json.loads((tmp_path / "run" / "coordinator.json").read_text())["http"]
        counted = ask(f"{http}/metrics").text
        kinds = set(re.findall(r'rookery_refusals_total\{event="handshake_refused",kind="(\w+)"\}', counted))
        assert "other_server" in kinds
        assert kinds & {"keys_at_one_end", "hung_up"}  # by which end saw first that the other has none
        log = (tmp_path / "run" / "logs" / "coordinator.log").read_text()
        assert 2 <= log.count("event=handshake_refused") <= 40
        assert coordinator.popen.poll() is None


def test_open_sockets_without_keys_are_refused_with_the_command_that_makes_them(tmp_path, free_port_block):
    with ExitStack() as stack:
        coordinator = begin(stack, tmp_path, free_port_block, "coordinator")
        assert coordinator.wait() == 2
        assert kinds_in(coordinator.said) == ["bind_without_keys"]
        wrong = begin(
            stack,
            tmp_path,
            free_port_block,
            "learner",
            "--keys",
            str(tmp_path / "nowhere"),
            "--patience",
            "1",
            name="wrong",
        )
        assert wrong.wait() == 2
        assert kinds_in(wrong.said) == ["key_file_unreadable"]
        assert str(tmp_path / "nowhere") in wrong.said
