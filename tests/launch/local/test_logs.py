"""Logs of a run's workers: by time, by name, once each, and on while they are written."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.cli.main import main
from tests.faults import kinds_in
from tests.waiting import until

LINE = "2026-01-01 00:00:{second:02},{milli:03} - {worker} - INFO - {said}\n"


def line(worker: str, second: int, said: str, milli: int = 0) -> str:
    """As a worker writes it."""
    return LINE.format(second=second, milli=milli, worker=worker, said=said)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What `rookery hosts up` keeps."""
    (tmp_path / "actor-0.log.1").write_text(line("actor-0", 1, "first"))
    (tmp_path / "actor-0.log").write_text(line("actor-0", 3, "third") + line("actor-0", 5, "half")[:-1])
    (tmp_path / "actor-0.out").write_text(line("actor-0", 3, "third") + "Traceback: \x1b[31mred\n")
    (tmp_path / "actor-0.jsonl").write_text('{"time": 1.0, "worker": "actor-0"}\n')
    (tmp_path / "learner-a.b.log").write_text(line("learner-a.b", 2, "second") + line("learner-a.b", 3, "later", 5))
    (tmp_path / "hosts.json").write_text("{}")
    return tmp_path


def shown(*words: str | Path) -> list[str]:
    """Lines, without their time."""
    result = CliRunner().invoke(main, ["logs", *map(str, words)], catch_exceptions=False)
    return [text.partition(" - ")[2] or text for text in result.output.splitlines()]


def test_lines_of_all_workers_stand_in_the_order_of_time_and_each_once(kept: Path) -> None:
    assert shown(kept) == [
        "actor-0 - INFO - first",
        "learner-a.b - INFO - second",
        "actor-0 - INFO - third",
        "actor-0: Traceback: �[31mred",
        "learner-a.b - INFO - later",
    ]


def test_one_worker_is_named_and_several_by_a_pattern(kept: Path) -> None:
    assert shown(kept, "learner-a.b") == ["learner-a.b - INFO - second", "learner-a.b - INFO - later"]
    assert len(shown(kept, "act*")) == 3


def test_lines_for_programs_alone_are_shown_too(kept: Path) -> None:
    for path in kept.glob("*.log*"):
        path.unlink()
    assert shown(kept, "actor-0")[0] == 'actor-0: {"time": 1.0, "worker": "actor-0"}'


def test_what_is_not_there_is_said(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, kind in (((kept, "actor-7"), "log_missing"), ((tmp_path / "empty",), "logs_missing")):
        assert kinds_in(CliRunner().invoke(main, ["logs", *map(str, words)]).output) == [kind]


def test_following_goes_on_past_a_file_that_was_moved_until_the_lock_is_free(kept: Path) -> None:
    with (kept / "hosts.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        out = kept / "shown"
        with out.open("w") as stream:
            words = [sys.executable, "-m", "launch", "logs", str(kept), "actor-0", "--follow"]
            reader = subprocess.Popen(words, stdout=stream)
        try:
            until(lambda: "third" in out.read_text(), what="what is there is shown")
            with (kept / "actor-0.log").open("a") as log:
                log.write("\n")
            (kept / "actor-0.log").rename(kept / "actor-0.log.2")
            (kept / "actor-0.log").write_text(line("actor-0", 6, "of the new file"))
            until(lambda: "of the new file" in out.read_text(), what="what is new is shown")
            assert "half" in out.read_text()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert reader.wait(30) == 0
        finally:
            reader.kill()
