"""The short form of `make fuzz`: spoilt messages at living ends, each of which goes on as before."""

from __future__ import annotations

import pytest

from tests.fuzz.run import Broken, fuzz
from tests.fuzz.targets import Ends


def test_Z4_ten_thousand_spoilt_messages_harm_nobody() -> None:
    """Z4: only RookeryErrors come out, no message is expensive, and nothing grows."""
    result = fuzz(10_000, seed=7)
    assert result.count == 10_000
    assert result.slowest < 0.25
    assert result.growth < 16 * 2**20


def test_Z4_spoilt_configurations_and_checkpoints_are_refused_in_a_sentence() -> None:
    """Nothing else comes out, nothing is expensive, and what is taken is what was written."""
    result = fuzz(1_500, seed=7, files=True)
    assert result.slowest < 5
    assert result.growth < 64 * 2**20


def test_an_end_that_breaks_is_found_with_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(ends: Ends, frames: list[bytes]) -> None:
        assert len(frames[0]) != 199, "199 bytes"

    monkeypatch.setattr(Ends, "codec", fragile)
    with pytest.raises(Broken, match=r"seed 7, number \d+ to the fragile; its frames \['.*199 bytes"):
        fuzz(10_000, seed=7)
