"""Baselines never keep a run from ending with its summary."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from protocol.config.run import Run
from protocol.errors import EnvironmentFault
from tests.workers import scripted
from workers.evaluation import baselines as module
from workers.evaluation.baselines import baselines_by_policy

FOUND = {"one": {"random": 1.0, "scripted": 2.0}}


def test_a_policy_is_compared_with_the_first_agent_it_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "baselines", lambda *_: FOUND)
    assert baselines_by_policy(Run(agents={"one": "shared"}), scripted.WORLD, complete=True) == {"shared": FOUND["one"]}


@pytest.mark.parametrize(
    "fault",
    [
        EnvironmentFault("environment_raised", environment="w", method="step", reason="it broke"),
        ValueError("it broke"),
        SystemExit("it broke"),
    ],
)
def test_a_world_that_raises_costs_only_the_baselines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
    def raises(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(module, "baselines", raises)
    assert baselines_by_policy(Run(), scripted.WORLD, complete=True) == {"one": {}}
    assert "it broke" in caplog.text


def test_a_slow_world_costs_no_more_than_the_patience_of_a_stopped_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    going = threading.Event()
    monkeypatch.setattr(module, "_HURRY", 0.1)
    monkeypatch.setattr(module, "baselines", lambda *_: going.wait(60))
    try:
        assert baselines_by_policy(Run(), scripted.WORLD, complete=False) == {"one": {}}
        assert "take too long; shorten them" in caplog.text
    finally:
        going.set()
