"""The guard fails a test for each kind of leak, says which, and cleans up; it lets a tidy test pass."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.leak_guard import MARK, PATIENCE, Snapshot
from tests.tools import ROOT

SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(60)']"

LEAKS = {
    "process": (f"subprocess.Popen({SLEEPER})", "process "),
    "orphan": (
        # the child ends at once and leaves a grandchild in a session of its own
        "subprocess.run([sys.executable, '-c', 'import subprocess, sys; "
        'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)\'])',
        "process ",
    ),
    "thread": ("threading.Thread(target=time.sleep, args=(8,), name='forgotten').start()", "thread 'forgotten'"),
    "descriptor": ("kept.append(os.open(__file__, os.O_RDONLY))", "descriptor "),
    "socket": ("kept.append(socket.create_server(('127.0.0.1', 0)))", "socket:["),
    "memory": ("(memory_dir / 'rookery-forgotten').touch()", "shared-memory file "),
    "dev_shm": ("pathlib.Path('/dev/shm', f'rookery-forgotten-{os.getpid()}').touch()", "/dev/shm/rookery-forgotten"),
}


def run_pytest(folder: Path, bodies: dict[str, str], patience: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Runs a test for each body under this repository's conftest, in a process of its own, with less patience."""
    tests = folder / "tests"
    tests.mkdir()
    for name in (
        "__init__.py",
        "conftest.py",
        "leak_guard.py",
        "ports.py",
        "report.py",
        "selection.py",
        "skips.py",
        "tools.py",
        "total.py",
        "trial.py",
    ):
        text = (ROOT / "tests" / name).read_text()
        (tests / name).write_text(text.replace(f"PATIENCE = {PATIENCE}", f"PATIENCE = {patience}"))
    (tests / "test_leak.py").write_text(
        "import os, pathlib, socket, subprocess, sys, threading, time\n\nkept = []\n\n"
        + "\n\n".join(f"def test_{n}(memory_dir, tmp_path):\n{textwrap.indent(b, '    ')}\n" for n, b in bodies.items())
    )
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=long", "tests"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run says in which one test leaks each kind and the last is tidy."""
    bodies = {kind: body for kind, (body, _) in LEAKS.items()} | {"tidy": "pass"}
    result = run_pytest(tmp_path_factory.mktemp("leaky"), bodies, patience=1.0)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("kind", LEAKS)
def test_leak_of_each_kind_fails_the_test_that_made_it(kind: str, leaky: str) -> None:
    section = leaky.split(f"ERROR at teardown of test_{kind} ")[1].split("ERROR at teardown")[0]
    assert "this test left behind" in section
    assert LEAKS[kind][1] in section
    assert f"{len(LEAKS) + 1} passed, {len(LEAKS)} errors" in leaky


def test_leaked_processes_and_files_are_removed(leaky: str) -> None:
    numbers = {int(line.split()[1][:-1]) for line in leaky.splitlines() if line.startswith("process ")}
    assert len(numbers) == 2
    assert not any(psutil.pid_exists(number) for number in numbers)
    assert not list(Path("/dev/shm").glob("rookery-forgotten*"))


def test_tidy_test_passes(tmp_path: Path) -> None:
    body = f"""\
        with open(__file__) as file, socket.create_server(('127.0.0.1', 0)):
            thread = threading.Thread(target=file.read)
            thread.start()
            thread.join()
        path = memory_dir / 'rookery-tidy'
        path.touch()
        path.unlink()
        with subprocess.Popen({SLEEPER}) as process:
            process.kill()
        threading.Thread(target=time.sleep, args=(0.5,)).start()  # gone within the guard's patience
    """
    result = run_pytest(tmp_path, {"tidy": textwrap.dedent(body)})
    assert result.returncode == 0, result.stdout + result.stderr


def test_process_of_another_run_is_left_alone(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    ready, started = tmp_path / "ready", tmp_path / "started"
    wait = f"import os, time\nwhile not os.path.exists({str(ready)!r}): time.sleep(0.01)\n"
    launcher = (
        f"{wait}import subprocess, sys\nchild = subprocess.Popen({SLEEPER})\nopen({str(started)!r}, 'w').close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", f"{launcher}child.wait()"], env=environment) as stranger:
        body = f"open({str(ready)!r}, 'w').close()\nwhile not os.path.exists({str(started)!r}):\n    time.sleep(0.01)"
        (tmp_path / "inner").mkdir()
        try:
            result = run_pytest(tmp_path / "inner", {"other_run": body})
            assert result.returncode == 0, result.stdout + result.stderr
            assert stranger.poll() is None
        finally:
            for child in psutil.Process(stranger.pid).children(recursive=True):
                child.kill()
            stranger.kill()


def test_guard_lets_no_time_pass_when_nothing_leaked(tmp_path: Path) -> None:
    """The guard stands around every test, so it must cost next to nothing."""
    before = Snapshot.take(tmp_path, "none")
    start, spent = time.perf_counter(), time.process_time()
    assert not before.leaks(patience=600.0)
    assert time.perf_counter() - start < 60.0
    assert time.process_time() - spent < 1.0
