"""The books: returns over the run, the summary's keys, and a coordinator that takes over from a dead one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import Run
from protocol.memory.counters import Counters
from tests.flows.runs import SUMMARY
from workers.learning.report import LearnerReport
from workers.metrics import run_metrics as module
from workers.metrics.run_metrics import RunMetrics
from workers.rollout.report import ActorReport

RUN = Run(steps=2_000)


class Clock:
    """Time that passes when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Instead of the real one."""
    return Clock(monkeypatch)


Opener = Callable[[], RunMetrics]


@pytest.fixture
def opened(run_dir: Path) -> Iterator[Opener]:
    """Opens the books of one run; they are closed at the end, whatever happens."""
    run_dir.mkdir()
    with ExitStack() as stack:

        def make() -> RunMetrics:
            books = RunMetrics(RUN, ["p"], run_dir)
            stack.callback(books.close)
            return books

        yield make


def observe(books: RunMetrics, steps: int, **learner: float) -> None:
    """One look at an actor that made `steps` and a learner."""
    books.observe(
        {("actor-0", 1): {"env_steps": steps // 2, "agent_steps": steps}}, {("learner-p", 1): learner}, [], {}
    )


def summary(books: RunMetrics, **changes: Any) -> dict[str, Any]:
    """A finished run's."""
    facts: dict[str, Any] = {
        "actors": {("actor-0", 1): {"env_steps": 1_000, "agent_steps": 2_000, "waits.credit.p": 1.5}},
        "learners": {("learner-p", 1): {"steps_made.p": 7, "version.p": 3, "lag_rows.p": 4, "lag_sum.p": 6}},
        "clean": set(),
        "restarts": {"actor-0": 1},
        "baselines": {"baselines": {"p": {"random": 1.0}}},
        "complete": True,
    }
    return books.summary(**(facts | changes))


def test_the_summary_has_every_promised_key_and_plain_rates(opened: Opener, clock: Clock) -> None:
    books = opened()
    observe(books, 2)
    clock.now += 10
    observe(books, 2_000)
    found = summary(books)
    assert found.keys() >= SUMMARY
    assert found["seconds"] == 10
    assert (found["env_steps_per_second"], found["agent_steps_per_second"]) == (100, 200)
    assert (found["train_steps"], found["versions"], found["lag"]["mean"]) == ({"p": 7}, {"p": 3}, 1.5)
    assert found["waits"] == {"credit.p": 1.5}
    json.dumps(found)


def test_seconds_count_from_the_first_step_to_the_newest(opened: Opener, clock: Clock) -> None:
    books = opened()
    for steps, wait in ((0, 5), (100, 3), (900, 4), (900, 60)):
        observe(books, steps)
        clock.now += wait
    assert books.seconds == 3


def test_returns_are_means_over_the_first_last_and_best_twentieth_of_the_run(opened: Opener) -> None:
    books = opened()
    for at in range(0, 2_000, 10):
        value = 50.0 if 1_000 <= at < 1_100 else at / 100
        books.episodes("p", at, 2, 2 * value)
    curve = summary(books)["returns"]["p"]
    assert curve["first"] == pytest.approx(sum(range(0, 100, 10)) / 10 / 100)
    assert curve["last"] == pytest.approx((1_900 + 1_990) / 2 / 100)
    assert curve["best"] == 50.0


def test_a_policy_without_an_ended_episode_has_no_return(opened: Opener) -> None:
    books = opened()
    assert summary(books)["returns"]["p"] == {"first": None, "last": None, "best": None}
    observe(books, 100)
    assert books.view["policies"]["p"]["return"] is None


def test_the_verdict_names_who_is_waited_for(opened: Opener, clock: Clock) -> None:
    books = opened()
    observe(books, 2)
    clock.now += 10
    observe(books, 100)
    actor, learner = ("actor-0", 1), ("learner-p", 1)
    assert books.verdict({actor: {"waits.credit.p": 6.0}}, {learner: {"waits.data.p": 1.0}}) == "learner-bound"
    assert books.verdict({actor: {"waits.credit.p": 0.1}}, {learner: {"waits.data.p": 9.0}}) == "actor-bound"
    assert books.verdict({actor: {"waits.credit.p": 0.1}}, {learner: {"waits.data.p": 0.1}}) == "balanced"


def test_a_coordinator_that_takes_over_knows_returns_and_seconds(opened: Opener, clock: Clock) -> None:
    first = opened()
    first.episodes("p", 5, 1, 40.0)
    observe(first, 2)
    clock.now += 10
    observe(first, 500)
    clock.now += 2
    second = opened()
    second.episodes("p", 1_995, 1, 80.0)
    observe(second, 600)
    clock.now += 3
    observe(second, 700)
    assert second.seconds == pytest.approx(15)
    curve = summary(second)["returns"]["p"]
    assert (curve["first"], curve["last"]) == (40.0, 80.0)


def test_pages_of_dead_workers_are_read_by_name_and_incarnation(opened: Opener, run_dir: Path) -> None:
    for name in ("actor-0.1", "actor-0.12", "learner-a.b.1"):
        role = ActorReport if name.startswith("actor") else LearnerReport
        Counters(run_dir / "counters" / name, *role.names(["p"]))
    books = opened()
    assert set(books.pages("actor*")) == {("actor-0", 1), ("actor-0", 12)}
    assert set(books.pages("learner*")) == {("learner-a.b", 1)}


def test_metrics_are_one_json_object_a_line(opened: Opener, run_dir: Path, clock: Clock) -> None:
    books = opened()
    for steps in (0, 100, 200):
        observe(books, steps, **{"steps_made.p": 4})
        clock.now += 1
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["agent_steps"] for row in rows] == [100, 200]
    assert rows[-1]["p"]["train_steps"] == 4
    assert list((run_dir / "tensorboard").iterdir())


def test_what_workers_measured_is_written_down_under_their_policy_H2(
    opened: Opener, clock: Clock, run_dir: Path
) -> None:
    books = opened()
    measured = {"p.loss": 0.5, "p.observation_std": float("nan"), "q.loss": 7.0, "p.q.loss": 8.0}
    books.observe({("actor-0", 1): {"agent_steps": 10}}, {("learner-p", 1): {}}, [], {}, measured)
    row = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["p"]["loss"] == 0.5
    assert not {"observation_std", "q.loss"} & row["p"].keys()
    assert "loss" not in books.view["policies"]["p"]  # what supervisors are sent stays small


def test_health_is_part_of_view_and_summary_H1(opened: Opener, clock: Clock) -> None:
    """Also what an incarnation found before it ended of it."""
    books = opened()
    pages = {
        ("learner-p", 1): {"batches_checked.p": 4, "health.not_finite.p": 3},
        ("learner-p", 2): {"batches_checked.p": 2, "health.reward_zero.p": 1},
    }
    books.observe({("actor-0", 1): {"agent_steps": 10}}, pages, [], {})
    told = summary(books, learners=pages)["health"]
    assert told["batches_checked"] == {"p": 6}
    assert told["findings"] == books.view["health"]
    assert [(one["level"], one["layer"], one["finding"]) for one in told["findings"]] == [
        ("fault", "data", "not_finite"),
        ("note", "data", "reward_zero"),
    ]


def test_the_mean_return_is_that_of_the_newest_hundred_episodes_once_there_are_twenty(opened: Opener) -> None:
    """By it the best checkpoint is told: neither a lucky first episode nor what was long ago decides."""
    books = opened()
    books.episodes("p", 100, 19, 1_900.0)
    assert books.mean_returns(["p"]) == {}
    books.episodes("p", 200, 1, 0.0)
    assert books.mean_returns(["p"]) == {"p": 95.0}
    for step in range(20):
        books.episodes("p", 300 + step, 5, 10.0)
    assert books.mean_returns(["p"]) == {"p": 2.0}
    books.episodes("p", 400, 500, 500.0)
    assert books.mean_returns(["p"]) == {"p": 1.0}


def test_who_sees_a_view_finds_its_point_in_the_history(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks from another thread, and takes a view once."""
    books, seen = opened(), []
    added = books.history.add

    def add(step: float, scalars: Mapping[str, float]) -> None:
        seen.append(books.view.get("made"))
        added(step, scalars)

    monkeypatch.setattr(books.history, "add", add)
    for steps in (2, 100, 500):
        observe(books, steps)
    assert seen == [None, 2, 100]
    assert books.view["made"] == 500
