"""The books: returns over the run, the summary's keys, and a coordinator that takes over from a dead one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import EnvironmentConfig, Run
from protocol.errors import TrainingFault
from protocol.memory.shared_file import Counters
from tests.flows.runs import SUMMARY
from workers.learning.report import LearnerReport
from workers.metrics import run_metrics as module
from workers.metrics.run_metrics import RunMetrics, check_trained
from workers.metrics.step_time import STAMPS
from workers.rollout.report import ActorReport

RUN = Run(steps=2_000, environment=EnvironmentConfig(copies=4))


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


def observe(books: RunMetrics, steps: int, acting: tuple[float, float] | None = None, /, **learner: float) -> None:
    """One look at an actor that made `steps`, and says from when to when if it was `acting`, and a learner."""
    books.observe({("actor-0", 1): acted(steps, acting)}, {("learner-p", 1): learner}, [], {})


def acted(steps: int, acting: tuple[float, float] | None = None) -> dict[str, float]:
    """The page of an actor that made `steps`, from one second since 1970 to another."""
    stamps = {} if acting is None else {name: at / 3600 for name, at in zip(STAMPS, acting, strict=True)}
    return {"env_steps": steps // 2, "agent_steps": steps, **stamps}


def summary(books: RunMetrics, **changes: Any) -> dict[str, Any]:
    """A finished run's."""
    facts: dict[str, Any] = {
        "actors": {("actor-0", 1): {**acted(2_000, (1_000, 1_010)), "waits.credit.p": 1.5}},
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
    assert found["seconds"] == pytest.approx(10)
    assert (found["env_steps_per_second"], found["agent_steps_per_second"]) == pytest.approx((100, 200))
    assert (found["train_steps"], found["versions"], found["lag"]["mean"]) == ({"p": 7}, {"p": 3}, 1.5)
    assert found["waits"] == {"credit.p": 1.5}
    json.dumps(found)


@pytest.mark.parametrize("looks", [[20.0], [7.3, 20.0], [7.3, 7.3001, 20.0], [5.4, 5.9, 6.4, 20.0]])
def test_rates_are_steps_by_the_time_that_they_took_however_seldom_and_often_anybody_looks(
    opened: Opener, clock: Clock, looks: list[float]
) -> None:
    """Of a run of 2,000 steps in half a second: when all is over, in the middle, twice at once, again and again."""
    books, begun = opened(), clock.now
    for look in looks:
        clock.now = begun + look
        last = min(7.5, look)
        made = int((last - 7.0) * 4_000) if look > 7.0 else 0
        observe(books, made, (begun + 7.0, begun + last) if made else None)
        for rate in (books.view["agent_steps_per_second"], books.view["made_per_second"]):
            assert rate == 0 or rate <= 4_001, "which is the truth while it goes on"
    found = summary(books, actors={("actor-0", 1): acted(2_000, (begun + 7.0, begun + 7.5))})
    assert found["seconds"] == pytest.approx(0.5)
    assert found["agent_steps_per_second"] == pytest.approx(4_000)
    assert found["env_steps_per_second"] == pytest.approx(2_000)


@pytest.mark.parametrize("between", [1.0, 2.5, 6.0])
def test_the_rate_of_a_world_that_is_slower_than_looks_neither_falls_to_nothing_nor_jumps(
    opened: Opener, clock: Clock, between: float
) -> None:
    """8 steps come at once in every so many seconds; looks every half."""
    books, begun = opened(), clock.now
    rates = []
    for _ in range(int(10 * between / 0.5)):
        made = 8 * int((clock.now - begun) / between)
        observe(books, made, (begun, clock.now) if made else None)
        rates.append(books.view["agent_steps_per_second"])
        clock.now += 0.5
    late = rates[len(rates) // 2 :]
    assert min(late) > 0.7 * 8 / between
    assert max(late) < 1.4 * 8 / between


def test_the_rate_of_a_world_that_has_stopped_falls(opened: Opener, clock: Clock) -> None:
    books, begun = opened(), clock.now
    for made in (8, 16, 24, *[24] * 40):
        observe(books, made, (begun, clock.now))
        clock.now += 0.5
    assert 0 <= books.view["agent_steps_per_second"] < 0.05 * 16


@pytest.mark.parametrize(
    ("policies", "trained", "complete", "untrained"),
    [
        (["p"], {"p": 1}, True, []),
        (["p"], {}, False, ["p"]),
        (["p", "q"], {"q": 3}, True, ["p"]),
        (["p", "q"], {"a": 9}, False, ["p", "q"]),
        ([], {}, True, []),
    ],
)
def test_a_run_that_trained_none_of_its_policies_is_not_complete(
    run_dir: Path, policies: list[str], trained: dict[str, int], complete: bool, untrained: list[str]
) -> None:
    """Of one whose policies all play by rules nothing is to be trained, and an auxiliary alone makes no policy."""
    run_dir.mkdir()
    with closing(RunMetrics(RUN, policies, run_dir, ["a"])) as books:
        page = {f"steps_made.{name}": count for name, count in trained.items()}
        found = summary(books, learners={("learner-p", 1): page})
        assert (found["complete"], found["untrained"]) == (complete, untrained)
        assert summary(books, learners={("learner-p", 1): page}, complete=False)["complete"] is False


def test_a_run_that_went_on_after_an_interrupt_and_trained_nothing_is_told_as_any_other(opened: Opener) -> None:
    books = opened()
    check_trained(summary(books))
    for restarts in ({}, {"coordinator": 1, "actor-0": 1}):
        with pytest.raises(TrainingFault) as raised:
            check_trained(summary(books, learners={}, restarts=restarts))
        assert (raised.value.kind, raised.value.steps, raised.value.policies) == ("nothing_trained", 2_000, ["p"])


def test_a_run_that_made_no_step_has_no_rate(opened: Opener) -> None:
    books = opened()
    observe(books, 0)
    found = summary(books, actors={})
    assert (found["seconds"], found["agent_steps_per_second"], found["train_steps_per_second"]) == (0, 0, 0)


def test_of_an_actor_that_does_not_tell_when_it_steps_looks_tell(opened: Opener, clock: Clock) -> None:
    """From the last look at none to that at the newest: a rate is never above the true one."""
    books = opened()
    for steps, wait in ((0, 5), (100, 3), (900, 4), (900, 60)):
        observe(books, steps)
        clock.now += wait
    assert books.seconds == pytest.approx(8)


def test_time_in_which_nobody_steps_for_long_is_not_the_runs(opened: Opener, clock: Clock) -> None:
    """Two actors that overlap, one that was started again after 20 s, one of the run's life a day later; what an
    actor says that cannot be is cut."""
    books, begun = opened(), clock.now
    times = [(0, 10), (5, 15), (35, 40), (86_400, 86_410)]
    clock.now += 86_410
    actors = {("actor-0", number): acted(10, (begun + a, begun + b)) for number, (a, b) in enumerate(times)}
    assert summary(books, actors=actors)["seconds"] == pytest.approx(50)
    assert summary(books, actors={("actor-0", 1): acted(1, (1, 1e12))})["seconds"] == pytest.approx(86_410)


def test_without_actors_learners_tell_when_they_made_updates(run_dir: Path, clock: Clock) -> None:
    run_dir.mkdir()
    books = RunMetrics(RUN.model_copy(update={"actors": 0}), ["p"], run_dir)
    begun = clock.now
    clock.now += 9
    stamps = {name: at / 3600 for name, at in zip(STAMPS, (begun + 5, begun + 5.5), strict=True)}
    observe(books, 0, **{"rows_trained.p": 100, "steps_made.p": 10, **stamps})
    assert books.view["made_per_second"] == pytest.approx(200)
    (line,) = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    assert (line["rows_trained"], line["rows_per_second"]) == (100, pytest.approx(200))
    assert {"lag", "agent_steps_per_second"} & {*line, *line["p"]} == set(), "nobody makes steps, and none is late"
    found = summary(books, actors={}, learners={("learner-p", 1): {"steps_made.p": 10, **stamps}})
    assert found["train_steps_per_second"] == pytest.approx(20)
    books.close()


def test_returns_are_means_over_the_first_last_and_best_twentieth_of_the_run(opened: Opener) -> None:
    books = opened()
    for at in range(0, 2_000, 10):
        value = 50.0 if 1_000 <= at < 1_100 else at / 100
        books.episodes("p", at, 2, 2 * value, at)
    found = summary(books)
    curve = found["returns"]["p"]
    assert curve["first"] == pytest.approx(sum(range(0, 100, 10)) / 10 / 100)
    assert curve["last"] == pytest.approx((1_900 + 1_990) / 2 / 100)
    assert curve["best"] == 50.0
    assert found["episode_length"]["p"] == pytest.approx((1_900 + 1_990) / 2 / 2), "of the same episodes as the last"


def test_a_policy_without_an_ended_episode_has_no_return(opened: Opener) -> None:
    books = opened()
    found = summary(books)
    assert found["returns"]["p"] == {"first": None, "last": None, "best": None}
    assert found["episode_length"]["p"] is None
    observe(books, 100)
    assert (books.view["policies"]["p"]["return"], books.view["policies"]["p"]["episode_length"]) == (None, None)


def test_return_and_length_are_of_the_episodes_that_ended_since_the_last_look_or_else_before(
    opened: Opener, run_dir: Path
) -> None:
    books = opened()
    for steps, episodes in ((10, [(2, 3.0, 8), (1, 9.0, 1)]), (20, []), (30, [(4, 4.0, 4)])):
        for told in episodes:
            books.episodes("p", steps, *told)
        observe(books, steps)
    rows = [json.loads(line)["p"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(row["return"], row["episode_length"]) for row in rows] == [(4.0, 3.0), (4.0, 3.0), (1.0, 1.0)]


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
    first.episodes("p", 5, 1, 40.0, 7)
    begun = clock.now
    observe(first, 2)
    clock.now += 10
    observe(first, 500)
    clock.now += 2
    second = opened()
    second.episodes("p", 1_995, 1, 80.0, 9)
    observe(second, 600)
    clock.now += 3
    observe(second, 700)
    assert second.seconds == pytest.approx(15), "as looks tell, the first coordinator's too"
    observe(second, 700, (begun + 1, begun + 14))
    assert second.seconds == pytest.approx(13), "as the actor does"
    curve = summary(second)["returns"]["p"]
    assert (curve["first"], curve["last"], summary(second)["episode_length"]["p"]) == (40.0, 80.0, 9.0)


def test_pages_of_dead_workers_are_read_by_name_and_incarnation(opened: Opener, run_dir: Path) -> None:
    for name in ("actor-0.1", "actor-0.12", "learner-a.b.1"):
        role = ActorReport if name.startswith("actor") else LearnerReport
        Counters(run_dir / "counters" / name, *role.names(["p"]))
    books = opened()
    assert books.paged("actor") == [("actor-0", 1), ("actor-0", 12)]
    assert books.paged("learner") == [("learner-a.b", 1)]
    assert set(books.page("actor-0", 12) or ()) == {name for names in ActorReport.names(["p"]) for name in names}
    assert books.page("actor-0", 2) is None


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


def test_of_a_run_that_pauses_nothing_is_written_down(opened: Opener, clock: Clock, run_dir: Path) -> None:
    """Its curves would stand upright; what is trained or evaluated meanwhile is news."""
    books, measured = opened(), [{}, {}, {"p.evaluation/return": 3.0}, {"p.evaluation/return": 3.0}]
    for evaluated in measured:
        clock.now += 1
        books.observe({("actor-0", 1): acted(10)}, {("learner-p", 1): {"steps_made.p": 1}}, [], {}, evaluated)
    books.observe({("actor-0", 1): acted(10)}, {("learner-p", 1): {"steps_made.p": 2}}, [], {})
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 3


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
    books.episodes("p", 100, 19, 1_900.0, 95)
    assert books.mean_returns(["p"]) == {}
    books.episodes("p", 200, 1, 0.0, 5)
    assert books.mean_returns(["p"]) == {"p": 95.0}
    for step in range(20):
        books.episodes("p", 300 + step, 5, 10.0, 5)
    assert books.mean_returns(["p"]) == {"p": 2.0}
    books.episodes("p", 400, 500, 500.0, 500)
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


def test_episodes_that_were_told_are_known_to_a_coordinator_that_takes_over_before_books_are_saved(
    opened: Opener, run_dir: Path
) -> None:
    """Whoever told them was answered, and tells them no more. Saved or not, they are counted once; a line that was cut
    off by the death is left out."""
    first = opened()
    observe(first, 100)
    first.save()
    first.take_episodes("actor-0", 1, [("p", 50, 100, 2, 6.0, 20), ("p", 60, 120, 0, 0.0, 0)])
    first.told["actor-0", 1, "p"] = 60
    journal = run_dir / "books.journal"
    kept = journal.read_bytes()
    journal.write_bytes(kept + kept[:20])
    second = opened()
    assert second.told == {("actor-0", 1, "p"): 60}
    assert summary(second)["returns"]["p"]["last"] == 3.0
    second.take_episodes("actor-0", 1, [("p", 70, 140, 0, 0.0, 0)])
    assert [json.loads(line)[3] for line in journal.read_text().splitlines()] == [50, 60, 70]
    second.save()
    journal.write_bytes(kept)  # it had no time to empty it
    third = opened()
    third.take_episodes("actor-0", 1, [("p", 70, 140, 1, 6.0, 20)])
    assert summary(third)["returns"]["p"]["last"] == 4.0
    third.save()
    assert journal.read_bytes() == b""


def test_the_last_episodes_are_on_the_curve_though_no_steps_are_made_any_more(opened: Opener, run_dir: Path) -> None:
    books = opened()
    observe(books, 2_000)
    books.take_episodes("actor-0", 1, [("p", 1_000, 2_000, 4, 8.0, 20)])
    observe(books, 2_000)
    observe(books, 2_000)
    points = [json.loads(line)["p"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [point.get("return") for point in points] == [None, 2.0]
