"""Mutants are real changes of code that runs, and are found again in later code."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.mutants import GROUPS, all_mutants, found_again, group_of, mutants_of, sample, table

SOURCE = b'''"""A module."""
from typing import Literal
Kind = Literal[1, 2]


def clamp(value: int, low: int = 0) -> int:
    """At least `low`."""
    if value < low and not (value is None):
        return low
    return value + 1
'''


def test_each_mutant_changes_one_place_of_what_runs() -> None:
    found = mutants_of("protocol/a.py", SOURCE)
    assert Counter((one.operator, one.old) for one in found) == Counter(
        [
            ("constant", "0"),
            ("condition", "value < low and not (value is None)"),
            *(("and/or", "and"), ("compare", "<"), ("not", "not"), ("compare", "is")),
            *(("return", "return low"), ("return", "return value + 1"), ("compute", "+"), ("constant", "1")),
        ]
    )
    for one in found:
        changed = one.applied(SOURCE)
        assert changed != SOURCE
        assert len(changed.splitlines()) == len(SOURCE.splitlines())
        compile(changed, "a.py", "exec")


def test_a_mutant_is_found_again_where_its_line_has_moved_and_not_where_it_has_changed() -> None:
    one = next(one for one in mutants_of("protocol/a.py", SOURCE) if one.operator == "compute")
    moved = found_again(asdict(one), mutants_of("protocol/a.py", b"import os\n" + SOURCE))
    assert moved is not None
    assert moved.line == one.line + 1
    assert found_again(asdict(one), mutants_of("protocol/a.py", SOURCE.replace(b"value + 1", b"value + 2"))) is None


def test_a_sample_has_as_many_of_each_group_in_turn_and_is_the_same_again(tmp_path: Path) -> None:
    for folder in [folder for folders in GROUPS.values() for folder in folders]:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_bytes(SOURCE)
    every = all_mutants(tmp_path)
    drawn = sample(every, 0, 5)
    assert [group_of(one.file) for one in drawn] == [*GROUPS] * 5
    assert drawn == sample(every, 0, 5) != sample(every, 1, 5)


def test_the_table_counts_by_group_and_names_what_nobody_noticed() -> None:
    one, two, *_ = (asdict(one) for one in mutants_of("protocol/a.py", SOURCE))
    lines = [{**one, "killed": True}, {**two, "killed": False, "over": False, "covered": True}, {"gone": True}]
    said = table(lines)
    assert "| protocol | 1 | 2 | 50% |" in said
    assert "Gone since: 1" in said
    assert f"protocol/a.py:{two['line']} " in said
