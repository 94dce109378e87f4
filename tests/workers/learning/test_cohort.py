"""Several policies in one process: each learns, fails and goes on as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protocol.config.run import IQN, PPO
from protocol.errors import TrainingFault
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers.learning.test_policy_learner import COPIES, REPLAY, STREAM, Bench, run_of
from workers.algorithms.cuda_graphs.step_compiler import StepCompiler
from workers.learning.cohort import Cohort
from workers.learning.policy_learner import PolicyLearner


class Company:
    """Members with surroundings of their own, all in one cohort."""

    def __init__(
        self,
        count: int,
        folder: Path | None = None,
        restarts: int = 1,
        stack: str = "",
        algorithm: PPO | IQN = STREAM,
        **policy: object,
    ) -> None:
        run = run_of(algorithm, publish_interval=2, **policy)
        self.benches = [Bench(run, folder and folder / str(i)) for i in range(count)]
        for bench in self.benches:
            bench.member.resume(None, Version(0, 0))
        self.heartbeats = 0
        self.cohort = Cohort(restarts, self._last, self.benches[0].counters, self._heartbeat, StepCompiler())
        for bench in self.benches:
            self.cohort.add(bench.member, stack)

    def _last(self, _: str) -> NDArray[np.uint8]:
        return self.benches[0].published[-1][1]

    def _heartbeat(self) -> None:
        self.heartbeats += 1

    def step(self) -> list[PolicyLearner]:
        """A turn of a learner process: who made an update in it."""
        learned = []
        for member, outcome in self.cohort.turns():
            with self.cohort.restarting(member):
                if member.learn(outcome):
                    learned.append(member)
                    if member.publication_due:
                        member.publish()
        return learned

    def weights(self, number: int) -> NDArray[np.float32]:
        """Of a member, as they are."""
        return self.benches[number].member.weights.parameters.numpy().copy()


def spoiled(bench: Bench) -> None:
    """Its weights are no numbers any more."""
    for parameter in bench.member.policy.parameters():
        parameter.data.fill_(float("nan"))


@pytest.mark.parametrize("stack", ["", "all"], ids=["in turn", "stacked"])
@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "published"])
def test_a_member_that_fails_goes_back_to_its_last_good_weights_and_the_others_go_on(
    tmp_path: Path, saved: bool, stack: str
) -> None:
    company, alone = Company(2, tmp_path if saved else None, stack=stack), Company(1)
    for bench in (*company.benches, *alone.benches):
        bench.feed(8)
    first, second = company.benches
    assert len(company.step()) == 2
    alone.step()
    if saved:
        first.save()
    version, good = first.published[-1]
    spoiled(first)
    trained = []
    while not first.counters["member_restarts.one"]:
        trained.append(company.step())
        alone.step()
    assert len(trained) == 3, "three updates in a row may fail"
    assert first.member.weights.bytes_view().tobytes() == good.tobytes()
    held = company.weights(0)
    assert first.published[-1][0].version == version.version + 1
    assert first.member.update.train_steps == (2 if saved else 0)
    difference = np.abs(company.weights(1) - alone.weights(0)).max()
    assert difference <= (1e-6 if stack else 0), "as if it were alone"
    assert second.counters["rejected.one"] == 0
    company.step()
    assert np.any(company.weights(0) != held), "it learns again"
    assert first.counters["steps_made.one"] == 4


def test_a_member_on_replay_that_fails_goes_back_and_the_others_of_its_stack_do_not_notice() -> None:
    company, alone = Company(2, stack="all", algorithm=REPLAY), Company(1, algorithm=REPLAY)
    for bench in (*company.benches, *alone.benches):
        bench.feed(4)
    first, second = company.benches
    assert len(company.step()) == 2
    alone.step()
    spoiled(first)
    for learned in ([first.member, second.member], [first.member, second.member], [second.member]):
        assert company.step() == learned, "the third failure in a row starts the first again"
        alone.step()
    assert first.counters["member_restarts.one"] == 1
    assert np.isfinite(company.weights(0)).all()
    assert np.abs(company.weights(1) - alone.weights(0)).max() <= 1e-6, "as if it were alone"
    steps = first.member.update.train_steps
    company.step()
    assert first.member.update.train_steps == steps + 1, "it learns again"


def test_a_member_whose_steps_are_compiled_keeps_what_one_that_is_not_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def compiled(function: Callable[..., object], **_: object) -> Callable[..., object]:
        asked.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    company = Company(1, tmp_path, compile=True)
    (bench,) = company.benches
    bench.feed(4)
    assert company.step() == [bench.member]
    assert asked == ["objective", "_move"]
    bench.save()
    other = Bench(run_of(STREAM, publish_interval=2), tmp_path / "0", incarnation=2)
    other.member.resume(None, Version(0, 0))
    assert other.member.update.train_steps == bench.member.update.train_steps == 2
    assert other.member.weights.bytes_view().tobytes() == bench.member.weights.bytes_view().tobytes()


def test_a_member_that_fails_too_often_ends_the_process_as_one_that_is_alone_does() -> None:
    for company in (Company(2, restarts=0), Company(1)):
        company.benches[0].feed(8)
        spoiled(company.benches[0])
        for _ in range(2):
            company.step()
        with raises(TrainingFault, "update_not_finite"):
            company.step()


def test_members_of_a_stack_wait_for_each_other_while_data_come_and_for_nobody_who_has_none() -> None:
    company = Company(3, stack="all")
    first, second, third = company.benches
    first.feed(2)
    assert not company.step(), "the others may be about to have a batch"
    second.feed(1)
    assert not company.step()
    assert company.step() == [first.member, second.member], "nothing new came"
    second.feed(1)
    assert company.step() == [first.member, second.member], "the third was not there the last time"
    third.feed(1)
    assert not company.step()
    assert company.step() == [third.member]
    assert [bench.member.update.train_steps for bench in company.benches] == [4, 4, 2]


def test_what_members_of_a_stack_wait_with_is_trained_at_the_end() -> None:
    company = Company(2, stack="all")
    company.benches[0].feed(1)
    assert not company.step()
    company.cohort.finish()
    assert company.benches[0].counters["trained.one"] == company.benches[0].counters["received.one"] == COPIES


def test_a_member_that_fails_at_the_very_end_is_finished_all_the_same(tmp_path: Path) -> None:
    company = Company(2, tmp_path)
    first = company.benches[0]
    first.feed(8)
    company.step()
    first.save()
    spoiled(first)
    company.cohort.finish()
    first.member.close()
    assert first.counters["member_restarts.one"] == 1
    assert first.counters["rejected.one"] == 3 * COPIES
    assert first.counters["trained.one"] == 5 * COPIES, "what had come is trained on from the checkpoint"
    newest = max(int(path.name) for path in (tmp_path / "0" / "checkpoints" / "one").iterdir() if path.name.isdigit())
    assert newest == first.member.update.train_steps


def test_the_loop_beats_before_the_update_of_each_member_as_all_of_them_may_take_long_G6() -> None:
    company = Company(3)
    company.step()
    assert company.heartbeats == 3


def test_a_batch_of_a_stack_that_is_refused_is_a_turn_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    company = Company(2, stack="all")
    first, second = company.benches
    first.feed(2)
    second.feed(2)

    def refuse(_: object) -> None:
        raise TrainingFault("shape_differs_from_layout", field="reward", value=[1], expected=[2])

    monkeypatch.setattr(first.member._health, "check", refuse)
    while not (done := company.step()):
        pass
    assert done == [first.member, second.member]
    assert first.counters["rejected.one"] == COPIES
    assert [first.member.update.train_steps, second.member.update.train_steps] == [0, 2]


@pytest.mark.parametrize("thawed", [False, True])
def test_who_is_frozen_leaves_its_stack_and_keeps_the_batch_that_it_has_until_it_is_thawed(thawed: bool) -> None:
    company = Company(2, stack="all")
    first, second = company.benches
    first.feed(2)
    assert company.step() == [], "it waits for the other"
    first.member.obey({"frozen": ["one"]})
    first.feed(1)
    second.feed(2)
    while not (done := company.step()):
        pass
    assert done == [second.member]
    assert not first.source.queue, "what comes is settled"
    assert first.member.update.train_steps == 0
    if thawed:
        first.member.obey({"frozen": []})
    company.cohort.finish()
    counted = [first.counters[f"{name}.one"] for name in ("received", "trained", "held")]
    assert counted[0] == counted[1] + counted[2]
    assert bool(first.member.update.train_steps) is bool(counted[1]) is thawed
