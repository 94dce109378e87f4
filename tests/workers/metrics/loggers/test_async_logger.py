"""What passes measurements on to somebody else's logger: no fault of it reaches the run, and each is counted."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from protocol.config.run import Run
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.metrics.loggers import async_logger
from workers.metrics.loggers.async_logger import AsyncLogger
from workers.metrics.writers import MetricWriters
from workers.runtime.files import SafeWriter


class Listening:
    """Keeps what it is told; the second moment is one too many for it."""

    def __init__(self, faulty: bool = False) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []
        self.complete: bool | None = None
        self.go = threading.Event()
        self._faulty = faulty

    def scalars(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        assert self.go.wait(60)
        if self._faulty and step == 2:
            raise OSError("the network is down")
        self.told.append((step, dict(values)))

    def close(self, complete: bool) -> None:
        self.complete = complete


def test_everything_is_passed_on_in_order_and_a_fault_costs_its_own_moment() -> None:
    logger = Listening(faulty=True)
    logger.go.set()
    out = AsyncLogger("wandb", lambda: logger)
    for step in (1, 2, 3):
        out.scalars(step, {"a/return": step / 2})
    out.close(complete=False)
    assert logger.told == [(1, {"a/return": 0.5}), (3, {"a/return": 1.5})]
    assert (out.written, out.missed, logger.complete) == (2, 1, False)


def test_a_logger_that_hangs_holds_nobody_up_and_what_it_misses_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_logger, "_WAITING", 5)
    monkeypatch.setattr(async_logger, "_END_SECONDS", 0.01)
    logger = Listening()
    out = AsyncLogger("mlflow", lambda: logger)
    for step in range(100):
        out.scalars(step, {})
    assert out.missed >= 90
    out.close(complete=True)
    assert logger.complete is None, "the end does not wait for it either"
    logger.go.set()
    out._thread.join(60)
    assert out.written + out.missed == 100
    assert logger.complete is True


def test_one_that_cannot_begin_leaves_the_run_alone(caplog: pytest.LogCaptureFixture) -> None:
    def begin() -> Listening:
        raise RuntimeError("no key\nfor this account")

    out = AsyncLogger("wandb", begin)
    out.scalars(1, {})
    out.close(complete=True)
    assert (out.written, out.missed) == (0, 1)
    assert "event=logger_failed logger=wandb error=RuntimeError: no key for this account" in caplog.text


def test_a_logger_whose_package_is_missing_is_refused_before_the_run(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == "mlflow" else real(asked))
    run_dir.mkdir()
    with raises(ConfigurationError, "logger_not_installed", value="mlflow", key="loggers"):
        MetricWriters(Run.model_validate({"loggers": ["mlflow"]}), run_dir, SafeWriter())
    assert not any(run_dir.iterdir())
