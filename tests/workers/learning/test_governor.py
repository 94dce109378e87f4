"""The governor keeps sampled rows to a ratio of inserted ones, and never stops both sides at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigurationError
from workers.learning.governor import Governor


@settings(max_examples=200, deadline=None)
@given(
    ratio=st.floats(0.05, 16),
    start=st.integers(1, 500),
    batch=st.integers(1, 200),
    insertion=st.integers(1, 300),
    choices=st.lists(st.booleans(), min_size=50, max_size=300),
)
def test_the_replay_ratio_stays_within_its_slack_and_nobody_deadlocks_E8_U6(
    ratio: float, start: int, batch: int, insertion: int, choices: list[bool]
) -> None:
    governor = Governor(ratio, start, batch, insertion, paces=True)
    for sampling in choices:
        assert governor.may_sample or governor.may_insert
        if sampling and governor.may_sample:
            governor.sampled += batch
        elif not sampling and governor.may_insert:
            governor.inserted += insertion
        behind = (governor.inserted - start) * ratio - governor.sampled
        assert governor.sampled <= max(0.0, (governor.inserted - start) * ratio) + 1e-6
        if governor.inserted >= start + insertion:
            assert behind <= 2 * ratio * insertion + batch + 1e-6


def test_nothing_is_sampled_before_the_start() -> None:
    governor = Governor(ratio=4, start=100, batch=8, insertion=10, paces=True)
    governor.inserted = 99
    assert not governor.may_sample
    assert governor.may_insert
    governor.inserted = 102
    assert governor.may_sample


def test_without_pacing_rows_always_come_in_A2() -> None:
    governor = Governor(ratio=4, start=1, batch=8, insertion=10, paces=False)
    governor.inserted = 1_000_000
    assert governor.may_insert


def test_a_ratio_that_never_samples_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be positive; raise them"):
        Governor(ratio=0, start=1, batch=8, insertion=10, paces=True)
