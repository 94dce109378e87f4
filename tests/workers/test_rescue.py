"""A run in one process whose loop hangs keeps what it has trained."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.errors import EnvironmentFault
from tests.flows import runs
from tests.waiting import until
from workers.environments.worlds.treasure_hunt import TreasureHunt
from workers.evaluation.forked import Forked
from workers.evaluation.periodic import PeriodicEvaluation
from workers.learning.policy_learner import PolicyLearner
from workers.runtime import watchdog
from workers.runtime.sole_process import SoleProcess
from workers.sequential import Sequential


class Hangs(BaseException):
    """In the place of a call that never returns."""


@pytest.fixture
def life(tmp_path: Path) -> Iterator[SoleProcess]:
    (tmp_path / "counters").mkdir()
    made = SoleProcess()
    yield made
    made.rescue = lambda: None
    gc.collect()  # pages of counters


def train(folder: Path, life: SoleProcess, **keys: Any) -> None:
    run = parse_run(runs.config(**{"steps": 2_000, **keys}))
    sequential = Sequential(run, folder, life)
    life.rescue = sequential.rescue
    try:
        sequential.finish(sequential.run())
    except BaseException:
        sequential._books.close(False)
        raise


def hang(monkeypatch: pytest.MonkeyPatch, life: SoleProcess, owner: type, name: str, call: int) -> None:
    """At so many calls of a method it never returns: whoever watches it rescues, and ends, the run."""
    made: list[int] = []
    method: Callable[..., Any] = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        made.append(1)
        if len(made) == call:
            life.rescue()
            raise Hangs
        return method(*arguments)

    monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize(
    ("owner", "name", "call", "kept"),
    [
        (TreasureHunt, "step", 100, True),
        (TreasureHunt, "step", 1, None),
        (TreasureHunt, "reset", 1, None),
        (PolicyLearner, "step", 200, False),
    ],
)
def test_what_was_trained_has_a_summary_and_unless_it_hangs_in_learning_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: SoleProcess, owner: type, name: str, call: int, kept: Any
) -> None:
    hang(monkeypatch, life, owner, name, call)
    with pytest.raises((Hangs, EnvironmentFault)):
        train(tmp_path, life)
    checkpoints = {int(path.name) for path in (tmp_path / "checkpoints").glob("*/*") if path.name.isdigit()}
    if kept is None:
        assert not (tmp_path / "summary.json").exists()
        assert not checkpoints
        return
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert not summary["complete"]
    assert summary["agent_steps"] > 0
    assert (max(summary["train_steps"].values()) in checkpoints) == kept


def test_a_world_that_is_never_closed_leaves_a_complete_run_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: SoleProcess
) -> None:
    kept: list[bool] = []

    def close(_: TreasureHunt) -> None:
        life.rescue()
        kept.append(json.loads((tmp_path / "summary.json").read_text())["complete"])

    monkeypatch.setattr(TreasureHunt, "close", close)
    train(tmp_path, life)
    assert set(kept) == {True}


def test_a_world_that_hangs_as_it_is_closed_costs_neither_the_summary_nor_the_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: SoleProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(TreasureHunt, "close", lambda _: time.sleep(600))

    def run(_: object) -> int:
        train(tmp_path, life)
        return 1  # as this thread should not come here

    forked = Forked(run)
    forked.lines(60.0)
    until(lambda: forked.over)
    assert forked.code == 0
    forked.close()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["complete"]
    assert summary["baselines_missing"].startswith("none are asked for"), "it went on to its end"
    assert "sequential: ended in order" in capfd.readouterr().err


def test_an_evaluation_ends_with_the_run_that_is_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: SoleProcess
) -> None:
    evaluate, turns = PeriodicEvaluation._evaluate, list[int]()

    def stopped(self: PeriodicEvaluation, made: int) -> None:
        on_turn = self._on_turn

        def turn() -> None:
            turns.append(1)
            life.stop()
            on_turn()

        self._on_turn = turn
        evaluate(self, made)

    monkeypatch.setattr(PeriodicEvaluation, "_evaluate", stopped)
    train(tmp_path, life, evaluation={"every_steps": 1}, steps=10**9)  # it may take a while until one has its turn
    assert turns == [1]
    assert not json.loads((tmp_path / "summary.json").read_text())["complete"]
