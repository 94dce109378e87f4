"""What every worker does alike: options, exit codes, last words."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL, c_char
from pathlib import Path

import pytest

from launch.local.process import python
from protocol.config.run import Run
from protocol.config.yaml_file import Change, read_run
from protocol.control.heartbeat import Report
from protocol.errors import ConfigurationError, DiskFault, EnvironmentFault, Timeout, disk_fault
from protocol.messages.core import Heartbeat, Welcome
from tests.faults import kinds_in, raises, words_in
from tests.protocol.control.test_control import coordinator
from tests.waiting import until
from workers.evaluation.forked import Forked
from workers.runtime import watchdog
from workers.runtime.process import Options, StopRequested, WorkerProcess, keep_config, lock_run_folder, run_dir_of


@pytest.fixture(autouse=True)
def _signals_stay_ours() -> object:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def options(bind: str = "127.0.0.1:0", patience: float = 0.2, coordinator: str = "tcp://127.0.0.1:1") -> Options:
    """Of a worker that nobody answers."""
    return Options(coordinator, "", bind, "", False, patience)


def test_a_foreseen_error_is_one_line_and_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fault = EnvironmentFault("step_before_reset", environment="there")

    def body(_: WorkerProcess) -> None:
        raise fault

    assert WorkerProcess("learner", options()).run(body) == fault.exit_code != 0
    assert capsys.readouterr().err.splitlines()[-1] == f"learner: {fault} [{fault.kind}]"
    assert f"event=failed kind={fault.kind} error={fault}" in caplog.messages


def test_an_unforeseen_error_is_told_with_its_traceback_G3(capsys: pytest.CaptureFixture[str]) -> None:
    def body(_: WorkerProcess) -> None:
        raise KeyError("nobody foresaw this")

    assert WorkerProcess("learner", options()).run(body) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_order_to_stop_is_no_error() -> None:
    def body(_: WorkerProcess) -> None:
        raise StopRequested

    assert WorkerProcess("actor", options()).run(body) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_only_takes_note_and_shows_in_the_exit_code_G4_U18(number: int) -> None:
    def body(life: WorkerProcess) -> None:
        os.kill(os.getpid(), number)
        assert life.must_stop
        life.check()

    assert WorkerProcess("actor", options()).run(body) == 128 + number


def test_a_coordinator_that_is_not_there_is_named_when_patience_ends() -> None:
    life = WorkerProcess("actor", options())
    seen: list[Timeout] = []

    def body(life: WorkerProcess) -> None:
        try:
            life.join("actor")
        except Timeout as fault:
            seen.append(fault)
            raise

    assert life.run(body) == Timeout.exit_code
    facts = {"peer": "tcp://127.0.0.1:1", "seconds": 0.2}
    assert [(fault.kind, fault.facts) for fault in seen] == [("no_coordinator_answered", facts)]


def test_a_bind_address_that_is_none_is_told() -> None:
    assert options("host").host_and_base == ("host", 0)
    assert options("host:65535").host_and_base == ("host", 65_535)
    for bind in ("127.0.0.1:http", "127.0.0.1:65536"):
        with raises(ConfigurationError, "bind_not_host_port", value=bind):
            _ = options(bind).host_and_base


def test_the_runs_folder_counts_only_if_it_holds_this_run(tmp_path: Path) -> None:
    facts = {"name": "actor-0", "incarnation": 1, "config": "", "world": "", "policies": [], "lease": 1, "heartbeat": 1}
    welcome = Welcome.model_validate({"run": "r1", "run_dir": str(tmp_path), **facts})
    assert run_dir_of(welcome) is None
    (tmp_path / "run_id").write_text("r1\n")
    assert run_dir_of(welcome) == tmp_path
    (tmp_path / "run_id").write_text("r2\n")
    assert run_dir_of(welcome) is None


def test_a_full_disk_is_one_sentence_and_any_other_os_error_is_not(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def body(_: WorkerProcess) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/runs/a")

    assert WorkerProcess("learner", options()).run(body) == DiskFault.exit_code
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("learner: ")
    assert kinds_in(said) == ["disk_full"]
    assert {"/runs/a", "--run-dir"} <= words_in(said)
    assert "No space left on device" in said
    assert "Traceback" not in caplog.text  # nor anywhere else
    assert disk_fault(ConnectionResetError(errno.ECONNRESET, "reset")) is None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_where_nothing_can_be_written_the_exit_code_says_so(tmp_path: Path) -> None:
    """A coordinator whose disk is full, and whose output lies there: what waits to be written changes no code."""
    (tmp_path / "config.yaml").write_text("environment: {id: matrix_game}\n")
    command = [*python("workers.coordinator", str(tmp_path / "config.yaml"), "--run-dir"), str(tmp_path / "run")]

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with open("/dev/full", "w") as full:
        code = subprocess.call(command, stdout=full, stderr=full, preexec_fn=fill)
    assert code == DiskFault.exit_code


def test_a_folder_serves_one_run_at_a_time_and_one_configuration(tmp_path: Path) -> None:
    lock = lock_run_folder(Run(), tmp_path)
    with raises(ConfigurationError, "folder_in_use", file=tmp_path):
        lock_run_folder(Run(), tmp_path)
    os.close(lock)
    os.close(lock_run_folder(Run(seed=1), tmp_path))  # nothing has begun yet
    (tmp_path / "state.json").write_text("{}")
    os.close(lock_run_folder(Run(seed=1), tmp_path))
    with raises(ConfigurationError, "run_configuration_differs", file=tmp_path, key="seed"):
        lock_run_folder(Run(seed=2), tmp_path)
    os.close(lock_run_folder(Run(seed=1), tmp_path))


@pytest.mark.parametrize("log_dir", ["/proc/x", "a/../../b"])
def test_logs_stay_in_the_runs_folder(tmp_path: Path, log_dir: str) -> None:
    with raises(ConfigurationError, "log_folder_outside_run", value=log_dir):
        lock_run_folder(Run(log_dir=log_dir), tmp_path)


@pytest.mark.parametrize("renamed", [0, 1])
def test_the_history_tells_of_a_change_if_and_only_if_it_came_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    """Whoever makes it may be killed after any number of steps."""
    (tmp_path / "history.jsonl").write_text('{"number": 1}\n')
    keep_config(Run(), tmp_path)
    done: list[Path] = []
    rename = Path.rename

    def killed(path: Path, target: Path) -> None:
        if len(done) == renamed:
            raise KeyboardInterrupt
        done.append(path)
        rename(path, target)

    with monkeypatch.context() as mortal:
        mortal.setattr(Path, "rename", killed)
        with suppress(KeyboardInterrupt):
            keep_config(Run(seed=7), tmp_path, [Change("seed", 0, 7)])
    os.close(lock_run_folder(read_run(tmp_path / "config.yaml"), tmp_path))
    assert read_run(tmp_path / "config.yaml").seed == 7 * renamed
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 1 + renamed
    assert not (tmp_path / ".history.jsonl").exists()


def test_heartbeats_begin_with_joining_as_a_world_may_take_longer_to_open_than_a_lease_lasts_G6(
    free_port_block: int,
) -> None:
    with coordinator(free_port_block) as server:

        def told(state: str) -> list[Heartbeat]:
            return [heartbeat for heartbeat in server.of(Heartbeat) if heartbeat.state == state]

        def body(life: WorkerProcess) -> None:
            life.join("actor")
            client = life.client
            assert client is not None
            until(lambda: len(told("starting")) > 1)
            client.start(lambda: Report(state="acting"))
            until(lambda: told("acting"))
            assert len([thread for thread in threading.enumerate() if thread.name == "control"]) == 1

        given = options(patience=60.0, coordinator=f"tcp://127.0.0.1:{free_port_block}")
        assert WorkerProcess("actor", given).run(body) == 0


def returns() -> None:
    pass


def locks_twice() -> None:
    """Hangs in a library, which no signal gets it out of."""
    mutex, library = (c_char * 64)(), CDLL(None)
    while True:
        library.pthread_mutex_lock(mutex)


def loops() -> None:
    while True:
        with suppress(BaseException):
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("close", "fault", "code"),
    [
        (locks_twice, None, 0),
        (loops, None, 0),
        (lambda: time.sleep(600), StopRequested(), 0),
        (loops, EnvironmentFault("step_before_reset", environment="there"), EnvironmentFault.exit_code),
        (returns, None, 0),
    ],
)
def test_a_world_that_is_never_closed_changes_nothing_of_how_its_worker_ends(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    close: Callable[[], None],
    fault: Exception | None,
    code: int,
) -> None:
    monkeypatch.setattr(watchdog, "_CLOSE_SECONDS", 0.1)
    life = WorkerProcess("actor", options())

    def body(_: WorkerProcess) -> None:
        try:
            if fault is not None:
                raise fault
        finally:
            life.close_world(close)

    def worker(_: object) -> int:
        ended = life.run(body)
        life.say_end(ended)
        return ended

    forked = Forked(worker)
    forked.lines(60.0)
    until(lambda: forked.over)
    assert forked.code == code
    forked.close()
    life.context.destroy(0)
    said = capfd.readouterr().err
    assert ("actor: ended in order" in said) == (code == 0)
    assert ("actor: waits: " in said and "test_process.py:" in said) == (close is not returns)
