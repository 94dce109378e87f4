"""The rate limiter keeps sampled rows to a ratio of inserted ones, and never stops both sides at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.planning.rate_limiter import RateLimiter

RATIOS = st.one_of(st.integers(1, 16).map(float), st.sampled_from([0.0625, 0.25, 0.5, 1.5, 3.125]))
"""Such that sums are exact."""


def play(rate_limiter: RateLimiter, moves: str) -> str:
    """What the rate limiter says: `s` a batch of 1 row, `i` one row; a letter that it refuses comes back as `-`."""
    said = ""
    for move in moves:
        if move == "s" and rate_limiter.may_sample:
            rate_limiter.sampled += 1
            said += move
        elif move == "i" and rate_limiter.may_insert(1):
            rate_limiter.inserted += 1
            said += move
        else:
            said += "-"
    return said


HAND = [
    # ratio 2, from 3 rows on, buffer 2: offset 6, so diff = 2 i - s stays within 4..8 once 3 rows are there.
    (2.0, 3, 2.0, "ssiiisssiiis", "--iiiss-ii-s"),
    # s s: no rows. i i i: diff 6. s s: diff 4; a third would make it 3. i i: diff 8; a third would make it 10.
    # ratio 1, from 1 row on, buffer 1: offset 1, diff within 0..2.
    (1.0, 1, 1.0, "sississiii", "-is-is-ii-"),
    # ratio 0.5, from 2 rows on, buffer 1: offset 1, diff = i/2 - s within 0..2.
    (0.5, 2, 1.0, "iiiiissssii", "iiii-ss--ii"),
    # a buffer that allows any difference: only the start is waited for.
    (4.0, 3, 1_000.0, "siisis", "-ii-is"),
]


@pytest.mark.parametrize(("ratio", "start", "buffer", "moves", "expected"), HAND)
def test_E8_sequences_computed_by_hand(ratio: float, start: int, buffer: float, moves: str, expected: str) -> None:
    """E8: Reverb's rule, with batches and insertions of one row."""
    assert play(RateLimiter(ratio, start, 1, 1, buffer), moves) == expected


def test_E8_by_default_no_batch_comes_before_its_rows_and_two_insertions_may_wait() -> None:
    """E8. Ratio 4, insertions of 10 rows, batches of 8: offset 400, diff within 400..400 + 8 + 80."""
    rate_limiter = RateLimiter(4, 100, 8, 10)
    rate_limiter.inserted = 100
    assert not rate_limiter.may_sample
    rate_limiter.inserted = 102
    assert rate_limiter.may_sample
    rate_limiter.inserted = 112  # diff 448
    assert rate_limiter.may_insert(10)
    rate_limiter.inserted = 122  # diff 488
    assert not rate_limiter.may_insert(1)
    rate_limiter.sampled = 4
    assert rate_limiter.may_insert(1)
    assert not rate_limiter.may_insert(2)


@settings(max_examples=100, deadline=None)
@given(
    ratio=RATIOS,
    start=st.integers(1, 500),
    batch=st.integers(1, 200),
    insertion=st.integers(1, 300),
    wide=st.one_of(st.none(), st.floats(1, 4)),
    choices=st.lists(st.tuples(st.booleans(), st.integers(1, 300)), min_size=50, max_size=100),
)
def test_E8_U6_the_replay_ratio_stays_within_its_buffer_and_nobody_deadlocks(
    ratio: float, start: int, batch: int, insertion: int, wide: float | None, choices: list[tuple[bool, int]]
) -> None:
    """E8, U6: whatever the order and the sizes, one side may always go on."""
    step = batch + ratio * insertion
    buffer = None if wide is None else wide * step / 2
    rate_limiter = RateLimiter(ratio, start, batch, insertion, buffer)
    below, above = (0.0, step + ratio * insertion) if buffer is None else (buffer, buffer)
    for sampling, rows in choices:
        rows = min(rows, insertion)
        assert rate_limiter.may_sample or rate_limiter.may_insert(insertion)
        if sampling and rate_limiter.may_sample:
            rate_limiter.sampled += batch
            assert (rate_limiter.inserted - start) * ratio - rate_limiter.sampled >= -below - 1e-6
        elif not sampling and rate_limiter.may_insert(rows):
            early = rate_limiter.inserted < start
            rate_limiter.inserted += rows
            ahead = (rate_limiter.inserted - start) * ratio - rate_limiter.sampled
            assert ahead <= (max(above, ratio * insertion) if early else above) + 1e-6
        if rate_limiter.sampled:
            assert rate_limiter.inserted >= start


def test_more_rows_at_once_than_the_buffer_was_made_for_are_an_error() -> None:
    with pytest.raises(ValueError, match="11 rows at once, at most 10"):
        RateLimiter(4, 1, 8, 10).may_insert(11)


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        ({"samples_per_insert": 0}, "sampling_not_positive", {"key": "policy.algorithm.replay_ratio"}),
        ({"samples_per_insert": float("inf")}, "sampling_not_positive", {}),
        ({"batch": 0}, "sampling_not_positive", {}),
        ({"min_size_to_sample": 0}, "learning_starts_not_positive", {"key": "policy.algorithm.learning_starts"}),
        (
            {"error_buffer": 23.9},
            "error_buffer_too_small",
            {"value": 23.9, "expected": 24, "key": "policy.algorithm.error_buffer"},
        ),
        ({"error_buffer": 0.0}, "error_buffer_too_small", {"value": 0.0, "expected": 24}),
    ],
)
def test_U6_what_would_deadlock_is_refused_with_the_reason(
    given: dict[str, float], kind: str, facts: dict[str, object]
) -> None:
    """U6."""
    sizes = {"samples_per_insert": 4, "min_size_to_sample": 1, "batch": 8, "insertion": 10, **given}
    with raises(ConfigurationError, kind, **facts):
        RateLimiter(**sizes)  # type: ignore[arg-type]
    RateLimiter(4, 1, 8, 10, error_buffer=24)


def test_U6_below_the_least_buffer_there_is_indeed_a_deadlock() -> None:
    """U6: the refusal is no caution: with one less on each side, both stop."""
    rate_limiter = RateLimiter(1, 1, 8, 8, error_buffer=8)
    assert not any(_stuck(rate_limiter, inserted) for inserted in range(1, 100))
    rate_limiter._min_diff, rate_limiter._max_diff = rate_limiter._min_diff + 1, rate_limiter._max_diff - 1
    assert any(_stuck(rate_limiter, inserted) for inserted in range(1, 100))


def _stuck(rate_limiter: RateLimiter, inserted: int) -> bool:
    rate_limiter.inserted = inserted
    return not rate_limiter.may_sample and not rate_limiter.may_insert(8)
