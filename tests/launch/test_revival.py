"""What becomes of those that died: a line, a pause, another start, and at the end the first traceback of all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launch.processes import Process, begin
from launch.revival import Revival, RunFailed

CRASHES = (
    "import sys\nprint('warming up', file=sys.stderr)\n"
    "def inner():\n    raise KeyError('the cause')\n"
    "try:\n    inner()\nexcept KeyError as fault:\n    raise ValueError('what came of it') from fault\n"
)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "crashes.py").write_text(CRASHES)
    (tmp_path / "gives_up.py").write_text("import sys\nsys.exit('gives_up: the sentence')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def looked_after(revival: Revival, process: Process) -> None:
    """Until it has ended and was taken note of, or started again."""
    process.popen.wait(60)
    revival.look_after(process, stopping=False)


def test_a_crashed_worker_is_started_again_and_its_first_traceback_is_shown_last_U13(scripts: Path) -> None:
    told: list[str] = []
    revival = Revival(told.append)
    process = begin("actor", ["crashes"], scripts / "logs" / "a.out", restarts=1)
    looked_after(revival, process)
    assert told[0].endswith("ended with exit code 1: ValueError: what came of it; starting it again in 0.25 s")
    time.sleep(max(0.0, process.again_at - time.monotonic()))
    revival.look_after(process, stopping=False)
    assert process.budget.again == 1
    other = begin("learner", ["gives_up"], scripts / "logs" / "b.out")
    process.popen.wait(60)
    with pytest.raises(RunFailed, match="learner ended with exit code 1: gives_up: the sentence again, after 0 restar"):
        looked_after(revival, other)
    assert told[1].startswith("the first actor that crashed said:\nTraceback (most recent call last):")
    assert "KeyError: 'the cause'" in told[1]
    assert told[1].endswith("ValueError: what came of it")
    assert "warming up" not in told[1]


def test_nobody_is_started_again_while_the_run_ends(scripts: Path) -> None:
    process = begin("actor", ["crashes"], scripts / "a.out", restarts=1)
    process.popen.wait(60)
    Revival(print).look_after(process, stopping=True)
    assert process.again_at == 0.0


def test_the_words_of_an_earlier_life_are_not_those_of_this_one(scripts: Path) -> None:
    output = scripts / "a.out"
    output.write_text("Traceback (most recent call last):\n  long ago\nOldError: forgotten\n")
    process = begin("actor", ["gives_up"], output)
    process.popen.wait(60)
    assert process.last_words() == "gives_up: the sentence"
    assert process.traceback() == ""
