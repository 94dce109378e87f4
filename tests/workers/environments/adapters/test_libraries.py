"""The table of other libraries' environments is what they do, and nobody is left out."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.libraries import PATH, ids, parts, table
from tests.tools import skip_or_fail


def test_the_table_has_a_row_for_each_that_plays() -> None:
    rows = [*parts(PATH.read_text(encoding="utf-8"))][1].splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ids()
    assert {row.rpartition("| plays as in its own loop")[1] for row in rows} == {"| plays as in its own loop"}


@pytest.mark.slow
def test_all_of_them_play_as_the_table_says() -> None:
    """Every environment of PettingZoo's classic, butterfly and sisl, of MPE2, and some of LBF and RWARE."""
    for package in ("Box2D", "chess", "pygame", "pymunk", "rlcard", "rware", "shimmy"):
        if find_spec(package) is None:
            skip_or_fail("a game of `make returns` is not installed", package)
    assert [*parts(PATH.read_text(encoding="utf-8"))][1].splitlines() == table().splitlines()
