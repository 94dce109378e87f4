"""What follows the counters of the whole run, through all restarts: schedules, checkpoints, limits (L6, X7)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.config.run import Run, parse_run
from protocol.errors import ConfigurationError
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from tests.workers.learning.test_policy_learner import COPIES, STREAM, Bench, run_of
from workers.coordination.assignments import Assignments
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.segment_check import BufferContext
from workers.metrics.run_metrics import RunMetrics
from workers.policies import checkpoint


def with_keys(**keys: Any) -> Run:
    return Run.model_validate({**run_of(STREAM).model_dump(exclude_unset=True), **keys})


def saved(bench: Bench, folder: Path) -> list[int]:
    bench.member.save_if_due()
    bench.member.close()
    return checkpoint.list_steps(folder / "checkpoints" / "one")


def test_checkpoints_are_made_by_the_steps_of_the_whole_run_L6(tmp_path: Path) -> None:
    """L6: 4 copies of 4 rows are 16 steps; the clock alone would make the first one only."""
    run = with_keys(checkpoint_steps=32, checkpoint_interval=10_000.0)
    bench = Bench(run, tmp_path)
    bench.member.resume(None, Version(0, 0))
    found = []
    assert saved(bench, tmp_path) == [], "there is nothing to keep"
    for _ in range(4):
        bench.feed(1)
        assert bench.member.step()
        found.append(saved(bench, tmp_path))
    assert found == [[2], [2, 4], [2, 4], [4, 8]]
    again = Bench(run, tmp_path, incarnation=2, rows_before=64)
    again.member.resume(None, Version(1, 5))
    again.member._checkpoints._taken_at = bench.member._checkpoints._taken_at  # type: ignore[union-attr]
    again.feed(1)
    assert again.member.step()
    assert saved(again, tmp_path) == [4, 8]
    again.feed(1)
    assert again.member.step()
    assert saved(again, tmp_path) == [8, 12]


def test_schedules_follow_the_steps_of_all_incarnations_X7() -> None:
    bench = Bench(run_of(STREAM), incarnation=2, rows_before=500)
    bench.member.resume(None, Version(1, 7))
    assert bench.member.progress == 0.5
    bench.feed(1)
    assert bench.member.step()
    assert bench.member.progress == (500 + 4 * COPIES) / 1_000
    for keys, horizon in (({"until": 250}, 1_000), ({"schedule_steps": 500}, 500)):
        half = Bench(with_keys(**keys))
        half.member.resume(None, Version(0, 0))
        half.feed(1)
        assert half.member.step()
        assert half.member.progress == 4 * COPIES / horizon


def test_a_run_ends_at_its_limit_of_steps_or_at_the_return_that_it_was_to_reach_X7(tmp_path: Path) -> None:
    run = parse_run({"steps": 1_000, "until": 250, "actors": 2, "target_return": 3.0})
    assert Assignments(run, ["one"]).quota("actor-0", lambda _: {}) == 125
    books = RunMetrics(run, ["one", "two"], tmp_path)
    assert not books.target_reached
    for policy, earned in (("one", 4.0), ("two", 2.0)):
        books.episodes(policy, 10, 200, 200 * earned, 200)
    assert not books.target_reached
    books.episodes("two", 20, 200, 200 * 3.5, 200)
    assert books.target_reached
    books.close()


@pytest.mark.parametrize(
    ("keys", "kind", "facts"),
    [
        ({"steps": 10, "until": 11}, "until_beyond_steps", {"value": 11, "limit": 10, "key": "until"}),
        ({"schedule": "lockstep", "target_return": 1.0}, "lockstep_setting_forbidden", {"setting": "target_return"}),
    ],
)
def test_limits_that_contradict_are_refused_X7(keys: dict[str, Any], kind: str, facts: dict[str, Any]) -> None:
    with raises(ConfigurationError, kind, **facts):
        parse_run(keys)


def test_batches_are_pinned_where_a_gpu_reads_them_and_only_there_L8(monkeypatch: pytest.MonkeyPatch) -> None:
    """L8; what it brings is measured by `rookery bench learner`. That unchanged weights move no bytes is J3's test."""
    pinned: list[torch.Size] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.shape)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)  # a build without CUDA has none
    policy = scripted.config(STREAM)
    context = BufferContext("one", scripted.layout_of(policy), scripted.Source(), scripted.counters())
    BatchAssembler(context, scripted.Performer().interface, 2)
    assert not pinned
    BatchAssembler(replace(context, device=torch.device("cuda")), scripted.Performer().interface, 2)
    assert len(pinned) >= 6
