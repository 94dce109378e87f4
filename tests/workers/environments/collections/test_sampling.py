"""Which member comes next: how often, when one opens, who is the worst."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from protocol.config.environment import Adversarial, Curriculum, EnvironmentConfig
from workers.environments.collections.sampling import (
    AdversarialSampler,
    CurriculumSampler,
    MemberSampler,
    PriorSampler,
    choice_of,
)

ABC = ["a", "b", "c"]


def drawn(choice: MemberSampler, times: int) -> Counter[str]:
    return Counter(choice.choose() for _ in range(times))


def chi_square(counts: Counter[str], expected: dict[str, float]) -> float:
    total = sum(counts.values()) / sum(expected.values())
    return sum((counts[one] - share * total) ** 2 / (share * total) for one, share in expected.items())


def test_a_prior_is_drawn_in_its_proportions_I9() -> None:
    """Normalised: chi-square, 2 degrees of freedom, p > 0.001."""
    prior = {"a": 5.0, "b": 2.0, "c": 0.5}
    counts = drawn(PriorSampler(prior, np.random.default_rng(0)), 4_000)
    assert chi_square(counts, prior) < 13.8
    assert chi_square(counts, dict.fromkeys(prior, 1.0)) > 13.8


def test_huge_and_tiny_weights_are_normalised() -> None:
    counts = drawn(PriorSampler({"a": 1.5e308, "b": 1.5e308, "c": 1e-300}, np.random.default_rng(0)), 200)
    assert counts["c"] == 0
    assert min(counts["a"], counts["b"]) > 70


def test_weights_of_a_prior_may_change_while_it_draws() -> None:
    sampler = PriorSampler({"a": 1.0, "b": 1.0, "c": 2.0}, np.random.default_rng(0))
    drawn(sampler, 10)
    sampler.update({"prior": {"c": 0.0, "b": 3.0, "a": 1.0}})
    counts = drawn(sampler, 4_000)
    assert counts["c"] == 0
    assert counts["b"] == pytest.approx(3_000, rel=0.1)


def test_training_draws_only_the_train_side_all_alike_I9() -> None:
    members = {name: {"id": "tag"} for name in ABC}
    config = EnvironmentConfig.model_validate({"members": members, "split": {"train": ["a", "c"], "test": ["b"]}})
    counts = drawn(choice_of(config, np.random.default_rng(3)), 2_000)
    assert counts["b"] == 0
    assert chi_square(counts, {"a": 1.0, "c": 1.0}) < 6.63


def ladder(rehearsal: float = 0.0, episodes: int = 3) -> CurriculumSampler:
    """d comes after b and c, which come after a; e is by itself."""
    curriculum = Curriculum(
        after={"b": ("a",), "c": ("a",), "d": ("b", "c")},
        threshold={"a": 1.0, "b": 2.0, "c": 3.0},
        episodes=episodes,
        rehearsal=rehearsal,
    )
    return CurriculumSampler(["a", "b", "c", "d", "e"], curriculum, np.random.default_rng(0))


@pytest.mark.parametrize("order", [("b", "c"), ("c", "b")])
def test_a_curriculum_opens_what_comes_after_the_mastered_I9(order: tuple[str, str]) -> None:
    """A partial order: d opens when both b and c are mastered, whichever is first."""
    choice = ladder()
    assert choice.open == ["a", "e"]
    for _ in range(3):
        choice.ended("a", 1.0)
    assert choice.open == ["a", "b", "c", "e"]
    first, second = order
    for _ in range(3):
        choice.ended(first, 3.5)
    assert choice.open == ["a", "b", "c", "e"]
    for _ in range(3):
        choice.ended(second, 3.0)
    assert choice.open == ["a", "b", "c", "d", "e"]


def test_mastery_needs_enough_episodes_and_their_mean_I9() -> None:
    choice = ladder()
    for score in (100.0, 100.0):
        choice.ended("a", score)
        assert choice.mastered == set()
    choice.ended("a", -300.0)
    assert choice.mastered == set()
    for score in (1.5, 1.5):  # the last three count: -300, 1.5, 1.5
        choice.ended("a", score)
        assert choice.mastered == set()
    choice.ended("a", 0.0)
    assert choice.mastered == {"a"}
    for _ in range(5):
        choice.ended("a", -9.0)
    assert choice.mastered == {"a"}, "what is open stays open"


def test_only_open_environments_are_played_and_the_mastered_in_their_share_I9() -> None:
    choice = ladder(rehearsal=0.25)
    assert drawn(choice, 300).keys() == {"a", "e"}
    for _ in range(3):
        choice.ended("a", 5.0)
    counts = drawn(choice, 4_000)
    assert chi_square(counts, {"a": 0.25, "b": 0.25, "c": 0.25, "e": 0.25}) < 16.3  # 3 degrees of freedom, p > 0.001
    for name in ("b", "c"):
        for _ in range(3):
            choice.ended(name, 5.0)
    counts = drawn(choice, 4_000)
    expected = {"d": 0.375, "e": 0.375, **dict.fromkeys("abc", 0.25 / 3)}
    assert chi_square(counts, expected) < 18.5  # 4 degrees of freedom


def test_an_adversary_tries_all_then_takes_the_worst_I9() -> None:
    choice = AdversarialSampler(ABC, Adversarial(tries=2, exploration=0.0), np.random.default_rng(0))
    scores = {"a": 3.0, "b": 1.0, "c": 2.0}
    first = [choice.choose() for _ in range(9)]
    assert Counter(first) == {"a": 3, "b": 3, "c": 3}, "nothing has ended so far"
    for name in first[:5]:
        choice.ended(name, scores[name])
    assert choice.choose() == "a", "c has not ended twice"
    choice.ended(first[5], scores[first[5]])
    assert drawn(choice, 20) == {"b": 20}
    for _ in range(20):  # the policies learn b
        choice.ended("b", 2.5)
    assert drawn(choice, 20) == {"c": 20}


def test_an_adversary_judges_by_the_last_episodes_I9() -> None:
    choice = AdversarialSampler(["a", "b"], Adversarial(tries=1, episodes=4, exploration=0.0), np.random.default_rng(0))
    choice.ended("a", -1000.0)
    choice.ended("b", 0.0)
    assert choice.choose() == "a"
    for _ in range(3):
        choice.ended("a", 9.0)
    assert choice.choose() == "a"
    choice.ended("a", 9.0)
    assert choice.choose() == "b"


def test_an_adversary_explores_in_its_share_I9() -> None:
    choice = AdversarialSampler(ABC, Adversarial(tries=1, exploration=0.3), np.random.default_rng(1))
    for name, score in zip(ABC, (1.0, 2.0, 3.0), strict=True):
        choice.ended(name, score)
    assert chi_square(drawn(choice, 4_000), {"a": 0.8, "b": 0.1, "c": 0.1}) < 13.8
