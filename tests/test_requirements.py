"""The scanner finds requirement numbers where tests name them, and nowhere else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.requirements import REQUIREMENTS, main, numbers, scan

pytestmark = pytest.mark.usefixtures("uncollected")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("test_one_agent_collects_D3", {"D3"}),
        ("test_D3_one_agent_collects", {"D3"}),
        ("test_A10_and_B1", {"A10", "B1"}),
        ("D3: one agent collects.", {"D3"}),
        ("B13, K6 and (U9).", {"B13", "K6", "U9"}),
        ("Holds for K1..K3 and C3–C4; `Z1-Z2`", {"K1", "K2", "K3", "C3", "C4", "Z1", "Z2"}),
        ("an A100, an H200, B200 and UTF-8", set()),
        ("A11, B18, F2, Q1, U0 and U19 do not exist", set()),
        ("D3.5, xD3, D3x, d3, R-D3 and D3-4", set()),
        ("the L2 norm, L1-loss and L2 cache, but L1", {"L1"}),
    ],
)
def test_numbers_are_read_from_names_and_docstrings(text: str, found: set[str]) -> None:
    assert numbers(text) == found


def test_only_tests_that_can_fail_count(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "test_some.py").write_text(
        '"""A1"""\nimport pytest\n\n'
        "def test_A2_counts(): ...\n\n"
        'def test_documented():\n    """A3: counts"""\n    "A4"\n\n'
        "def helper_A5(): ...\n\n"
        "@pytest.mark.skip(reason='later')\ndef test_A6(): ...\n\n"
        "@pytest.mark.xfail\ndef test_A7(): ...\n\n"
        "class TestGroup:\n    @pytest.mark.slow\n    async def test_A8(self): ...\n"
    )
    (tmp_path / "conftest.py").write_text("def test_A9(): ...\n")
    assert scan(tmp_path) == {
        "A2": ["flows/test_some.py::test_A2_counts"],
        "A3": ["flows/test_some.py::test_documented"],
        "A8": ["flows/test_some.py::test_A8"],
    }


def test_list_is_complete() -> None:
    counts = Counter(number[0] for number in REQUIREMENTS)
    expected = {"A": 10, "B": 17, "C": 13, "D": 9, "E": 11, "F": 1, "G": 9, "H": 4, "I": 12, "J": 9, "K": 11, "L": 8}
    assert counts == expected | {"Z": 5, "U": 18}
    assert all(f"{letter}{n}" in REQUIREMENTS for letter, last in counts.items() for n in range(1, last + 1))


def test_report_is_printed_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert set(report["missing"]) | set(report["covered"]) == set(REQUIREMENTS)
    assert not set(report["missing"]) & set(report["covered"])
    main([])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"{len(report['missing'])} of {len(REQUIREMENTS)} requirements have no test"
    assert [line.split()[0] for line in printed[:-1]] == report["missing"]
