"""Workers that a fork server starts are their launcher's children, whatever becomes of the server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest

from launch.local import fork_client, process, supervisor
from launch.local.fork_client import ForkClient, ForkedProcess
from launch.local.process import Process, end_all, python, start, start_process
from protocol.config.run import Run
from tests.tools import ROOT
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pidfds are missing")

WAITS = ["workers.actor", "--coordinator", "tcp://127.0.0.1:1"]
"""For a coordinator that is not there."""
SERVER = [sys.executable, "-P", "-m", "workers.fork_server"]
STAND_IN = """import sys, time

def command():
    if "--help" not in sys.argv:
        time.sleep(600)

if __name__ == "__main__":
    command()
"""
"""In the place of a worker whose imports take a second."""


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fork server's code lies now, with stand-ins for what it imports and forks."""
    folder = tmp_path / "quick"
    shutil.copytree(ROOT / "protocol", folder / "protocol", ignore=shutil.ignore_patterns("golden", "clients"))
    shutil.copytree(ROOT / "workers" / "runtime", folder / "workers" / "runtime")
    for name in ("__init__", "fork_server"):
        shutil.copy(ROOT / "workers" / f"{name}.py", folder / "workers")
    for name in ("actor", "coordinator", "evaluator", "hooks", "learner"):
        (folder / "workers" / f"{name}.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkClient]:
    """With a server that is started by its first request."""
    monkeypatch.setattr(fork_client, "_START_SECONDS", PATIENCE)
    client = ForkClient(python("workers.fork_server"), tmp_path / "server.out")
    yield client
    client.close()


def server_of(forks: ForkClient) -> subprocess.Popen[bytes]:
    """Its server, which runs."""
    assert forks._server is not None
    return forks._server


def fork(forks: ForkClient, folder: Path, *command: str) -> Process:
    """A worker that was forked."""
    process = start_process("actor", command, folder / "worker.out", forks=forks)
    assert isinstance(process.popen, ForkedProcess), (folder / "server.out").read_text()
    return process


def begun(process: Process) -> Process:
    """`process`, a worker that goes on until it is ended, as soon as it answers."""
    until(lambda: "event=http" in process.last_words(), what="it has begun")
    return process


def test_a_forked_worker_is_what_one_started_by_command_line_is(
    forks: ForkClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who its parent is, its name, session, folder, files, threads, variables; exit codes, signals, and a restart."""
    monkeypatch.setenv("ROOKERY_NODE", "here")
    with monkeypatch.context() as patch:
        patch.setenv("ROOKERY_COORDINATOR", "tcp://127.0.0.1:1")
        forks.start(dict(os.environ))
    waiting, other = fork(forks, tmp_path, *WAITS), start_process("actor", WAITS, tmp_path / "other.out")
    try:
        one, two = psutil.Process(begun(waiting).popen.pid), psutil.Process(begun(other).popen.pid)
        assert one.ppid() == two.ppid() == os.getpid()
        assert [word for word in one.cmdline() if word] == two.cmdline()
        assert one.cwd() == two.cwd()
        assert os.getsid(one.pid) == one.pid
        assert {Path(file.path).name for file in one.open_files()} == {"worker.out"}
        assert one.environ()["ROOKERY_NODE"] == "here"
        until(lambda: one.num_fds() == two.num_fds(), what="both have as many files open")
        until(lambda: one.num_threads() == two.num_threads(), what="both have as many threads")
        refused = fork(forks, tmp_path, "workers.learner", "--no-such-option")
        assert refused.popen.wait(60) == 2
        assert "--no-such-option" in refused.last_words()
        with open("/dev/full", "w") as full:
            unheard = forks.fork([*WAITS, "--bind", "0.0.0.0:0"], process._environment(), full, full)
        assert unheard is not None
        assert unheard.wait(60) == 2  # whatever of its output could not be written
        assert fork(forks, tmp_path, "workers.actor").popen.wait(60) == 2  # its server's coordinator is not its own
        assert waiting.code is None
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.popen.wait(0.01)
        waiting.kill("by this test")
        assert waiting.code == -signal.SIGKILL
        start(waiting)
        assert isinstance(waiting.popen, ForkedProcess)
        assert waiting.popen.pid != one.pid
    finally:
        end_all([waiting, other], seconds=0)


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_killed_or_does_not_answer_costs_no_worker(
    forks: ForkClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from another server where one is killed, before its request or in the middle of it, and from the command
    line where nobody answers."""
    waiting = fork(forks, tmp_path, *WAITS)
    try:
        servers = [server_of(forks)]
        for delay in (0.0, 0.3):
            if delay:
                servers[-1].send_signal(signal.SIGSTOP)
            killing = threading.Timer(delay, servers[-1].kill)
            killing.start()
            if not delay:
                servers[-1].wait()
            assert fork(forks, tmp_path, "workers.actor", "--help").popen.wait(60) == 0
            killing.join()
            servers.append(server_of(forks))
        assert len({server.pid for server in servers}) == 3
        last = servers[-1]
        last.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(fork_client, "_ANSWER_SECONDS", 0.1)
            process = start_process("actor", ["workers.actor", "--help"], tmp_path / "worker.out", forks=forks)
        assert isinstance(process.popen, subprocess.Popen)
        assert process.popen.wait(60) == 0
        assert last.poll() == -signal.SIGKILL
        assert "no answer" in (tmp_path / "server.out").read_text()
        assert waiting.code is None
        assert psutil.Process(waiting.popen.pid).ppid() == os.getpid()
    finally:
        end_all([waiting], seconds=0)


@pytest.mark.usefixtures("quick")
def test_who_cannot_be_forked_is_started_by_command_line(
    forks: ForkClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a variable that a library reads when it is imported, one whose command the server does not know, and one
    whose command is no text."""
    fork(forks, tmp_path, "workers.actor", "--help").popen.wait(60)
    for name, command in (("OPENBLAS_NUM_THREADS", "workers.actor"), ("ROOKERY_NODE", "workers.coordinator")):
        monkeypatch.setenv(name, "2")
        process = start_process("worker", [command, "--help"], tmp_path / "worker.out", forks=forks)
        assert isinstance(process.popen, subprocess.Popen)
        assert process.popen.wait(60) == 0
        assert f"{command} was not forked: " in (tmp_path / "server.out").read_text()
        monkeypatch.delenv(name)
    process = start_process("worker", ["workers.learner", "--help", "\udc80"], tmp_path / "worker.out", forks=forks)
    assert process.popen.wait(60) == 0
    assert "workers.learner was not forked: " in (tmp_path / "server.out").read_text()


def test_a_server_with_threads_forks_nobody(forks: ForkClient, tmp_path: Path, quick: Path) -> None:
    """And is not tried again."""
    (quick / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "if 'workers.fork_server' in sys.orig_argv:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    with (tmp_path / "worker.out").open("a") as output:
        for _ in range(2):
            assert forks.fork(["workers.actor", "--help"], dict(os.environ), output, output) is None
    assert (tmp_path / "server.out").read_text().count("threads") == 1


def test_code_that_changes_on_disk_has_a_new_server(forks: ForkClient, tmp_path: Path, quick: Path) -> None:
    servers = []
    for changed in (False, False, True):
        if changed:
            os.utime(quick / "workers" / "actor.py", (1, 1))
        assert fork(forks, tmp_path, "workers.actor", "--help").popen.wait(60) == 0
        servers.append(server_of(forks).pid)
    assert servers[0] == servers[1] != servers[2]


LIES = {
    "no JSON": b"\xff{",
    "no request": b"[]",
    "another key": json.dumps({"command": WAITS, "directory": "/", "environment": {}, "user": "root"}).encode(),
    "no command": json.dumps({"command": [], "directory": "/", "environment": {}}).encode(),
    "another program": json.dumps({"command": ["os"], "directory": "/", "environment": {}}).encode(),
    "another variable": json.dumps({"command": WAITS, "directory": "/", "environment": {"LD_PRELOAD": "x"}}).encode(),
    "no files": json.dumps({"command": WAITS, "directory": "/", "environment": {}}).encode(),
    "too long": b" " * 70_000,
}


def alive(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_lied_to_says_so_and_goes_on(tmp_path: Path) -> None:
    """And one whose launcher ignores what becomes of its children, as what is started from some shells does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        server = subprocess.Popen([*SERVER, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=tmp_path)
        signal.signal(signal.SIGCHLD, before)
        theirs.close()
        ours.settimeout(PATIENCE)
        assert json.loads(ours.recv(70_000)) == {"pid": 0, "refusal": ""}
        for name, lie in LIES.items():
            with open(os.devnull, "rb") as file:
                socket.send_fds(ours, [lie], [] if name == "no files" else [file.fileno()] * 3)
            reply = json.loads(ours.recv(70_000))
            assert reply["pid"] == 0, name
            assert reply["refusal"], name
        assert psutil.Process(server.pid).children() == []
        word, promise = os.pipe()
        with (tmp_path / "worker.out").open("a") as output:
            socket.send_fds(ours, [LIES["no files"]], [output.fileno(), output.fileno(), word])
        os.close(word)
        forgotten = json.loads(ours.recv(70_000))["pid"]
        assert psutil.pid_exists(forgotten)
        os.close(promise)
        until(lambda: not alive(forgotten), what="a worker that nobody knows of has ended")
        assert (tmp_path / "worker.out").read_text() == ""
        ours.close()
        assert server.wait(60) == 0


def test_a_server_and_its_workers_end_with_their_launcher(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from launch.local.process import fork_client, start_process\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "client = fork_client(folder / 'server.out', lambda: False)\n"
        f"worker = start_process('actor', {WAITS!r}, folder / 'worker.out', forks=client)\n"
        "print(client._server.pid, worker.popen.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    server, worker = map(int, result.stdout.split())
    assert "was not forked" not in (tmp_path / "server.out").read_text()
    until(lambda: not alive(server), what="the server has ended")
    until(lambda: not alive(worker), what="the worker has ended")


@pytest.mark.parametrize(
    ("device", "there", "forked"),
    [("cuda", "null", False), ("auto", "null", False), ("cpu", "null", True), ("auto", "no-such-device", True)],
)
def test_who_may_use_a_gpu_is_started_by_command_line(
    device: Literal["auto", "cuda", "cpu"], there: str, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA does not outlast a fork; `there` stands for the devices of a GPU."""
    monkeypatch.setattr(supervisor, "_GPUS", (there,))
    assert supervisor._on_gpu(Run(device=device), "learner") is not forked
