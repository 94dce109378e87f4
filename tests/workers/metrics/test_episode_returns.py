"""Returns over a run: the first ones are those of all episodes that began then, and not of the short ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.config.run import Run
from workers.metrics.episode_returns import FIRST, Cohort, ReturnsCurve, first_cohort
from workers.metrics.run_metrics import RunMetrics


def curve_of(*ended: tuple[int, int, float]) -> ReturnsCurve:
    """A run of 2,000 steps with (steps, episodes, mean return) that ended."""
    curve = ReturnsCurve(2_000)
    for at, count, mean in ended:
        curve.add(at, count, count * mean, count)
    return curve


DOOR = ((20, 2, 0.9), (60, 2, 0.9), (400, 96, 0.0), (1_000, 40, 0.1), (1_990, 40, 0.2))
"""Two of a hundred found the door by chance, and ended at once; the others tried for 400 steps."""


def test_the_first_returns_are_those_of_the_whole_cohort_and_the_best_are_not_those_that_ended_early() -> None:
    curve = curve_of(*DOOR)
    cohort: Cohort = (0, 100, 3.6)
    curve.settle(60, (96, 4, 3.6))
    curve.settle(400, cohort)
    curve.settle(2_000, cohort)
    assert curve.summary(cohort) == pytest.approx({"first": 0.036, "last": 0.2, "best": 0.2})
    assert curve_of(*DOOR).summary()["first"] == 0.9, "what those who tell of no cohort are known by"


def test_copies_that_end_their_episodes_together_are_not_best_in_between() -> None:
    """Of a hundred copies two find the door in each round, and 98 fail together at its end."""
    curve = ReturnsCurve(2_000, copies=100)
    for at in range(400, 2_001, 400):
        curve.add(at - 300, 2, 1.8, 2)
        curve.add(at, 98, 0.0, 98)
    curve.settle(400, (0, 100, 1.8))
    assert curve.summary((0, 100, 1.8)) == pytest.approx({"first": 0.018, "last": 0.0, "best": 0.018})


def test_a_policy_that_unlearns_is_seen_to() -> None:
    curve = curve_of((50, 10, 5.0), (100, 10, 5.0), (1_000, 10, 3.0), (2_000, 10, 1.0))
    curve.settle(100, (0, 20, 100.0))
    assert curve.summary((0, 20, 100.0)) == {"first": 5.0, "last": 1.0, "best": 5.0}


@pytest.mark.parametrize(
    ("cohort", "first"),
    [
        ((96, 4, 3.6), None),
        ((6, 100, 10.0), None),
        ((5, 100, 10.0), 0.1),
        ((100, 0, 0.0), None),
        ((0, 0, 0.0), None),
    ],
)
def test_while_more_than_a_twentieth_of_it_goes_on_a_cohort_has_no_mean(cohort: Cohort, first: float | None) -> None:
    """A run that ends before it has does not know; the few of an actor that died keep nobody from knowing."""
    curve = curve_of(*DOOR)
    curve.settle(2_000, cohort)
    found = curve.summary(cohort)
    assert found["first"] == first
    assert found["best"] == found["last"] == 0.2


@pytest.mark.parametrize("cohort", [(16, 120, 1_200.0), (0, 136, 1_360.0)])
def test_the_best_is_found_where_the_first_episodes_never_ended(cohort: Cohort) -> None:
    curve = curve_of(*((10 * part, 10, 100.0 if 40 <= part < 120 else 10.0) for part in range(200)))
    curve.settle(100, cohort)
    assert curve.summary(cohort)["best"] == 100.0


def test_nobody_waits_for_episodes_of_an_actor_that_began_anew() -> None:
    told = {("actor-0", 2): (0, 0, 0.0), ("actor-0", 1): (32, 335, 67.0), ("actor-1", 1): (3, 5, 1.0)}
    pages = {key: dict(zip((f"{kind}.p" for kind in FIRST), counts, strict=True)) for key, counts in told.items()}
    assert first_cohort("p", pages) == (3, 340, 68.0)


def test_a_cohort_is_not_complete_before_the_first_twentieth_is_over() -> None:
    curve = curve_of(*DOOR)
    curve.settle(60, (0, 4, 3.6))
    assert curve.summary((0, 100, 3.6))["best"] == 0.2


def test_the_cohort_is_of_all_actors_and_a_coordinator_that_returns_knows_when_it_was_complete(tmp_path: Path) -> None:
    pages = [dict(zip((f"{kind}.p" for kind in FIRST), told, strict=True)) for told in ((1, 50, 10.0), (0, 50, 5.0))]
    other: dict[str, float] = {"agent_steps": 1}
    told = {(f"actor-{number}", 1): page for number, page in enumerate([*pages, other])}
    assert first_cohort("p", told) == (1, 100, 15.0)
    assert first_cohort("q", told) is None
    actors = {("actor-0", number): {"agent_steps": 500, **page} for number, page in enumerate(pages)}
    first = RunMetrics(Run(steps=2_000), ["p"], tmp_path)
    for at, count, mean in DOOR[:3]:
        first.episodes("p", at, count, count * mean, count)
    first.observe(actors, {}, [], {})
    first.close()
    second = RunMetrics(Run(steps=2_000), ["p"], tmp_path)
    second.episodes("p", 1_990, 40, 8.0, 40)
    found = second.summary(actors, {}, set(), {}, {"baselines": {}}, True)["returns"]["p"]
    second.close()
    assert found == {"first": 0.15, "last": 0.2, "best": 0.2}


def test_returns_of_a_run_that_is_made_longer_stay_at_the_steps_where_they_were() -> None:
    short, longer = ReturnsCurve(2_000), ReturnsCurve(4_000)
    for at in (100, 1_990):
        short.add(at, 1, float(at), 10)
    longer.restore(short.to_plain())
    longer.add(3_990, 1, 0.0, 10)
    assert [*longer.to_plain()["parts"]] == ["5", "99", "199"]
    assert longer.history == [100.0, 1_990.0, 0.0]
