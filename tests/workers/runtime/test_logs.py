"""Logs: one file a worker, for people, for programs or both; bounded; harmless on a full disk."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.config.run import Run
from workers.runtime.logs import configure_logging, facts, rates

log = logging.getLogger("a.worker")


@pytest.fixture(autouse=True)
def _handlers_stay_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ROOKERY_PARENT", "1")
    root = logging.getLogger()
    kept, level = list(root.handlers), root.level
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = kept
    root.setLevel(level)


def run_of(**keys: object) -> Run:
    """A run with these keys."""
    return Run.model_validate(keys)


def test_a_line_says_time_worker_level_and_message_in_a_file_of_its_own_H3(tmp_path: Path) -> None:
    """H3: time-name-level-msg, under the worker's right name."""
    configure_logging("actor-0", run_of(), tmp_path)
    log.info("event=acting quota=%d", 7)
    (path,) = (tmp_path / "logs").iterdir()
    assert path.name == "actor-0.log"
    time, name, level, message = path.read_text().strip().split(" - ")
    assert (name, level, message) == ("actor-0", "INFO", "event=acting quota=7")
    assert time.startswith("20")


def test_the_same_as_json_objects_with_tracebacks_H3(tmp_path: Path) -> None:
    configure_logging("learner-a", run_of(log_format="both", log_dir="elsewhere"), tmp_path)
    log.info("event=update policy=%s train_step=%d loss=%.3f", "a", 5, 0.25)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("event=crashed error=%s", "ValueError")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["learner-a.jsonl", "learner-a.log"]
    first, second = map(json.loads, (tmp_path / "elsewhere" / "learner-a.jsonl").read_text().splitlines())
    assert first["time"] > 1e9
    del first["time"]
    said = {"event": "update", "policy": "a", "train_step": 5, "loss": 0.25}
    assert first == {"worker": "learner-a", "level": "INFO", **said}
    assert "ValueError: no" in second["traceback"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("event=a n=-3 x=1e-3", {"event": "a", "n": -3, "x": 0.001}),
        ('event=failed reason="it is full" n=2', {"event": "failed", "reason": "it is full", "n": 2}),
        (
            "event=failed error=a sentence of words; do that",
            {"event": "failed", "error": "a sentence of words; do that"},
        ),
        ("a library's own words, x=3", {"message": "a library's own words, x=3"}),
    ],
)
def test_keys_and_values_of_a_message(message: str, told: dict[str, object]) -> None:
    assert facts(message) == told


def test_a_log_is_put_aside_when_it_is_large_and_three_are_kept(tmp_path: Path) -> None:
    configure_logging("actor-0", run_of(log_mebibytes=1), tmp_path)
    for _ in range(6 * 16):
        log.info("event=long text=%s", "x" * 2**16)
    paths = {path.name: path.stat().st_size for path in (tmp_path / "logs").iterdir()}
    assert paths.keys() == {"actor-0.log", "actor-0.log.1", "actor-0.log.2", "actor-0.log.3"}
    assert max(paths.values()) <= 2**20


def test_no_files_where_none_are_wanted_or_the_folder_is_not_seen(tmp_path: Path) -> None:
    configure_logging("actor-0", run_of(logging=False), tmp_path)
    configure_logging("actor-0", run_of(), None)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_lines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("actor-0", run_of(), tmp_path)

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (handler,) = logging.getLogger().handlers
    with monkeypatch.context() as patch:
        patch.setattr(handler.stream, "flush", full, raising=False)  # type: ignore[attr-defined]
        patch.setattr(handler, "flush", lambda: full(None))
        log.info("event=lost")
    log.info("event=written")
    assert "event=written" in (tmp_path / "logs" / "actor-0.log").read_text()
    assert capsys.readouterr().err == ""


def test_rates_and_waits_of_a_worker_between_two_looks_H4() -> None:
    before = {"env_steps": 100.0, "steps_made.a": 5.0, "waits.credit.a": 1.0, "torn.a": 0.0}
    after = {"env_steps": 600.0, "steps_made.a": 15.0, "waits.credit.a": 6.0, "waits.data.a": 0.0, "torn.a": 4.0}
    assert rates(before, after, 10.0) == "env_steps_per_second=50 steps_made_per_second.a=1 waits.credit.a=0.500"
    assert rates(after, after, 10.0) == ""
