"""The packed word orders as the pair does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.weights.manifest import Version, lag, pack, unpack

VERSIONS = st.builds(Version, st.integers(0, 2**24 - 1), st.integers(0, 2**40 - 1))


@given(VERSIONS, VERSIONS)
def test_words_order_as_versions_do_and_unpack_to_them(a: Version, b: Version) -> None:
    assert unpack(pack(a)) == a
    assert (pack(a) < pack(b)) == (a < b)
    assert pack(a) < 2**64


@pytest.mark.parametrize("version", [Version(-1, 0), Version(0, -1), Version(2**24, 0), Version(0, 2**40)])
def test_a_version_that_does_not_fit_is_refused(version: Version) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        pack(version)


def test_lag_counts_publications_across_incarnations() -> None:
    words = np.array([[pack(Version(1, 5)), pack(Version(2, 7))]], np.uint64)
    assert lag(Version(2, 9), words).tolist() == [[4, 2]]
