"""The tool of `make portable`: which arithmetics it takes, what it has to measure, and what it makes of values."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests import portable
from tests.margins import Row, arithmetics, classes, table
from tests.portable import covering, environment, environment_of, missing, read, rows
from tests.trial import VARIABLE, Result, Settings, Trial

BITS = {
    "vectors": {"": "aa", "narrow": "bb", "same": "aa", "wide": "- not on this processor (SIGILL)"},
    "kernels": {"": "aa", "old": "cc", "older": "dd"},
    "silent": {"": "aa", "set": "aa"},
    "threads": {"1": "aa", "2": "ee"},
}
TEST = "tests/test_it.py::test_it"
WANTED = [Row(f"seed {seed}", {}, seed) for seed in range(3)] + [Row("a tenth", {}, 0, 0.1), Row("none", {}, 0, 0.0)]


def line(row: str, *values: float, bound: float = 2.0, above: bool = True, control: bool = False) -> dict[str, Any]:
    """What a test writes that came to these values."""
    results = [asdict(Result("", value, bound, above, control)) for value in values]
    return {"row": row, "test": TEST, "seconds": 1.0, "results": results}


def lines(*values: float, less: tuple[float, float] = (1.0, 0.0)) -> list[dict[str, Any]]:
    """Of three seeds, of a tenth of the steps and of none."""
    return [line(row.name, value) for row, value in zip(WANTED, (*values, *less), strict=True)]


def test_one_value_of_each_kind_of_bits_is_taken_and_a_factor_that_changes_none_is_dropped() -> None:
    assert classes(BITS) == {"vectors": ["", "narrow"], "kernels": ["", "old", "older"], "threads": ["1", "2"]}


def test_what_is_left_out_is_shown_with_its_reason() -> None:
    told = arithmetics(BITS).splitlines()
    assert len(told) == 2 + sum(map(len, BITS.values()))
    assert "| vectors | wide |  | left out: not on this processor (SIGILL) |" in told
    assert "| vectors | same | aa | left out: the same bits as another value |" in told
    assert "| silent | set | aa | left out: the factor changes no bit |" in told
    assert "| kernels | old | cc | measured |" in told


@pytest.mark.parametrize("sizes", [(2,), (3, 2), (2, 3, 2, 2), (3, 4, 3, 2, 2)])
def test_all_values_and_all_pairs_of_values_occur_in_few_combinations_of_which_the_defaults_are_first(
    sizes: tuple[int, ...],
) -> None:
    factors = {str(place): [f"{place}{value}" for value in range(size)] for place, size in enumerate(sizes)}
    chosen = [tuple(one.values()) for one in covering(factors)]
    assert chosen[0] == tuple(values[0] for values in factors.values())
    assert {value for one in chosen for value in one} == {value for values in factors.values() for value in values}
    for a, b in combinations(range(len(sizes)), 2):
        assert {(one[a], one[b]) for one in chosen} == {*product(factors[str(a)], factors[str(b)])}
    assert len(chosen) <= portable.MOST


def test_without_a_factor_the_default_is_the_only_arithmetic() -> None:
    assert covering({}) == [{}]


def test_rows_are_five_seeds_in_the_default_one_in_each_other_and_two_that_learn_less_each_way() -> None:
    found = rows(classes(BITS))
    default = [row for row in found if row.share == 1 and row.arithmetic == found[0].arithmetic]
    assert [row.seed for row in default] == [0, 1, 2, 3, 4]
    assert sorted(row.share for row in found if row.share < 1) == [0, 0, 0.1, 0.1]
    others = [row for row in found if row.arithmetic != found[0].arithmetic]
    assert len({tuple(row.arithmetic.items()) for row in others}) == len(others) == len(covering(classes(BITS))) - 1
    assert len({row.name for row in found}) == len(found)


def test_a_row_sets_what_its_arithmetic_says_and_nothing_of_what_the_shell_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    row = Row("x", {"OPENBLAS_CORETYPE": "Prescott", "MKL_CBWR": "", "threads": "2"}, 7, 0.1)
    found = environment_of(row, tmp_path)
    assert found["OPENBLAS_CORETYPE"] == "Prescott"
    assert "MKL_CBWR" not in found
    assert found["OMP_NUM_THREADS"] == found["OPENBLAS_NUM_THREADS"] == "2"
    assert environment({})["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv(VARIABLE, found[VARIABLE])
    assert Settings.given() == Settings(7, 0.1, 2, "x", str(tmp_path))


def test_what_was_measured_is_not_measured_again_and_what_broke_or_was_cut_off_is(tmp_path: Path) -> None:
    file, row = tmp_path / "results.jsonl", WANTED[0]
    written = [{"bits": BITS}, line("seed 0", 3.0), {**line("seed 0"), "test": "broken"}, line("seed 1", 3.0)]
    file.write_text("".join(json.dumps(one) + "\n" for one in written) + '{"row": "seed 0", "test": "cut')
    assert missing(row, [TEST, "broken", "cut", "new"], read(file)) == ["broken", "cut", "new"]
    assert missing(WANTED[2], [TEST], read(file)) == [TEST]
    assert read(tmp_path / "none.jsonl") == []


def test_a_table_has_mean_deviation_worst_bound_margin_and_what_less_learning_comes_to() -> None:
    told, wrong = table(WANTED, [TEST], lines(9.0, 10.0, 11.0))
    assert told.splitlines()[2:] == ["| test_it | 3 | 10 | 1 | 9 | ≥ 2 | 8.0 | 1 | 0 |"]
    assert wrong == []


def test_where_less_is_better_margin_and_worst_are_turned_round() -> None:
    known = [line(row.name, value, above=False) for row, value in zip(WANTED, (0.9, 1.0, 1.1, 5.0, 6.0), strict=True)]
    told, wrong = table(WANTED, [TEST], known)
    assert told.splitlines()[2:] == ["| test_it | 3 | 1 | 0.1 | 1.1 | ≤ 2 | 10.0 | 5 | 6 |"]
    assert wrong == []


def test_values_that_are_all_the_same_are_as_far_as_can_be() -> None:
    told, wrong = table(WANTED, [TEST], lines(2.0, 2.0, 2.0))
    assert "| none differs |" in told
    assert wrong == []


@pytest.mark.parametrize(
    ("known", "word"),
    [
        (lines(4.0, 5.0, 6.0), "3.0 sd"),
        (lines(1.9, 2.0, 2.0), "misses"),
        (lines(9.0, 10.0, 11.0, less=(2.5, 0.0)), "passes at a tenth"),
        (lines(9.0, 10.0, 11.0, less=(1.0, 2.0)), "passes untrained"),
        (lines(9.0, 10.0, 11.0)[:-1], "nothing was measured in 1 row"),
    ],
)
def test_what_is_too_near_passes_untrained_or_was_not_measured_is_said(known: list[dict[str, Any]], word: str) -> None:
    _, wrong = table(WANTED, [TEST], known)
    assert any(word in one for one in wrong)


def test_a_control_is_not_expected_to_fail_where_nothing_is_learned() -> None:
    known = lines(9.0, 10.0, 11.0)
    for one, without in zip(known, (0.09, 0.1, 0.11, 0.01, 0.0), strict=True):
        one["results"] += [asdict(Result("without", without, 2.0, above=False, control=True))]
    told, wrong = table(WANTED, [TEST], known)
    assert told.splitlines()[3] == "| test_it (without) | 3 | 0.1 | 0.01 | 0.11 | ≤ 2 | 190.0 | – | – |"
    assert wrong == []


def test_a_trial_judges_prints_and_keeps_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(TEST, Settings(row="seed 0", results=str(tmp_path / "results.jsonl")))
    trial.reaches(3.0, 2.0)
    trial.stays_below(0.5, 1.0, "without")
    with pytest.raises(AssertionError, match="margin=-1"):
        trial.errs_less(2.0, 1.0, "error")
    assert "value=3 bound=2 margin=1" in capsys.readouterr().out
    trial.keep()
    (kept,) = read(tmp_path / "results.jsonl")
    assert [one["what"] for one in kept["results"]] == ["", "without", "error"]
    with pytest.raises(AssertionError):
        trial.reaches(float("nan"), 2.0)


@pytest.mark.parametrize(("share", "steps", "rate"), [(1.0, 500, 0.1), (0.1, 50, 0.1), (0.0, 50, 1e-30)])
def test_less_is_learned_in_fewer_steps_and_nothing_without_a_rate(share: float, steps: int, rate: float) -> None:
    trial = Trial(TEST, Settings(share=share))
    assert (trial.steps(500), trial.rate(0.1)) == (steps, rate)
    assert bool(trial.keys) == (share == 0)
