"""A rolling upgrade while training goes on: workers of a release are replaced, one after another, by those of the next,
which speaks one schema more."""

from __future__ import annotations

import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

import protocol
from tests.flows import runs

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("launch", "protocol", "workers")
NEXT = protocol.SCHEMA + 1


def next_release(folder: Path) -> Path:
    """A folder with the packages of a release that differs in what it calls itself and in the schemas that it speaks:
    whatever says anything of schema `NEXT` to a worker of this release is refused."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    file = folder / "protocol" / "__init__.py"
    text = file.read_text()
    for was, becomes in (
        (f'RELEASE = "{protocol.RELEASE}"', 'RELEASE = "99.0.0"'),
        (f"\nSCHEMA = {protocol.SCHEMA}\n", f"\nSCHEMA = {NEXT}\n"),
        (f"OLDEST_SCHEMA = {protocol.OLDEST_SCHEMA}", f"OLDEST_SCHEMA = {protocol.SCHEMA}"),
    ):
        assert text.count(was) == 1
        text = text.replace(was, becomes)
    file.write_text(text)
    return folder


def is_next(pid: int) -> bool:
    """Whether this process is of the next release."""
    return "next" in psutil.Process(pid).environ()["PYTHONPATH"].split(":")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "order"),
    [("auto", ("actor-0", "actor-1", "learner-0")), ("tcp", ("learner-0", "actor-0", "actor-1"))],
)
def test_each_worker_is_replaced_by_one_of_the_next_release_while_training_goes_on_Z4(
    tmp_path: Path,
    memory_dir: Path,
    free_port_block: int,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
    order: tuple[str, ...],
) -> None:
    """The coordinator comes last. Books are exact, nothing was lost, and no message was refused."""
    upgraded, address = next_release(tmp_path / "next"), f"127.0.0.1:{free_port_block}"
    data = runs.paced(tmp_path, 10_000_000, pause=0.01, actors=2, num_learner_processes=1, transport=transport)
    run = [str(runs.write(data, tmp_path)), "--run-dir", str(tmp_path / "run"), "--bind", address]
    joining = ["--coordinator", f"tcp://{address}", "--resident", "--patience", "120"]
    workers: dict[str, runs.Worker] = {}
    everyone = {"coordinator", *order}
    with ExitStack() as stack:

        def begin(name: str, release: str) -> None:
            role = name.partition("-")[0]
            stays = ["--resident"] if release == "this" else []
            options = ["--open", *run, *stays] if role == "coordinator" else ["--name", name, *joining]
            workers[name] = stack.enter_context(runs.started([role, *options], tmp_path, f"{name}-{release}"))

        def on(more: int = 2_000) -> None:
            """Everybody is there, and the run goes on by so many steps, trained on."""
            runs.until(lambda: {*runs.workers_of(tmp_path)} == everyone, runs.PATIENCE, "everybody is there")
            steps = runs.agent_steps(tmp_path)
            runs.until(lambda: runs.agent_steps(tmp_path) >= steps + more, runs.PATIENCE, "the run goes on")

        for name in ("coordinator", *order):
            begin(name, "this")
        on()
        said = [*workers.values()]
        monkeypatch.setattr(runs, "EXTRA_PATH", str(upgraded))
        for name in (*order, "coordinator"):
            workers[name].popen.send_signal(signal.SIGTERM)
            assert workers[name].wait() in (0, 128 + signal.SIGTERM), workers[name].said
            begin(name, "next")
            runs.until(lambda: runs.workers_of(tmp_path).get(name) == workers[name].popen.pid, what=name)  # noqa: B023
            on()
        assert all(is_next(pid) for pid in runs.workers_of(tmp_path).values())
        workers["coordinator"].popen.send_signal(signal.SIGTERM)  # it is not resident: all are told to end
        for name in ("coordinator", *order):
            runs.until((tmp_path / "run" / "summary.json").exists, runs.PATIENCE, "the summary")
            workers[name].popen.send_signal(signal.SIGTERM)
            workers[name].wait()
        for worker in (*said, *workers.values()):
            assert "Traceback" not in worker.said, worker.said
            assert "refused" not in worker.said, worker.said
    segments = runs.summary_of(tmp_path)["segments"]
    assert runs.balanced(segments), segments
    assert segments["in_flight"] == segments["lost_in_learner"] == segments["unexplained"] == 0, segments
    assert sum(segments["dropped"].values()) == segments["rejected"] == 0, segments
    assert segments["trained"] > 0
