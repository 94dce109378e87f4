"""The list of reasons to skip has those that the tests name, and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.skips import REASONS, fault, reason_in
from tests.tools import ROOT

OWN = ("skips.py", "test_skips.py", "test_tools.py", "test_report.py", "test_requirements.py")
"""Files that are about skips."""
LISTED = ("skip_or_fail", "require", "skipif")
UNLISTED = ("skip", "importorskip")


@cache
def sources() -> dict[str, str]:
    """The text of every file of the tests."""
    paths = (path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name not in OWN)
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """(file, last name of what is called, the call) wherever a test skips or may do so."""
    found = []
    for file, text in sources().items():
        for node in ast.walk(ast.parse(text)) if any(word in text for word in LISTED + UNLISTED) else ():
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found += [(file, name, node)] if name in LISTED + UNLISTED else []
    return found


def reasons() -> Iterator[tuple[str, str]]:
    """(file and line, reason) wherever a test writes one down; one that is put together is seen when it is given."""
    for file, name, call in calls():
        given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "reason")]
        for value in (one.value for one in given if name in LISTED and isinstance(one, ast.Constant)):
            yield f"{file}:{call.lineno}", str(value) + " is not installed" * (name == "require")


def test_every_reason_that_a_test_names_is_listed() -> None:
    found = list(reasons())
    assert len(found) > 30
    assert [(place, reason) for place, reason in found if reason not in REASONS] == []


def test_every_listed_reason_is_named_by_a_test() -> None:
    named = "\n".join(sources().values())
    words = {reason: reason.removesuffix(" is not installed") for reason in REASONS}  # a loop names packages only
    assert [reason for reason, word in words.items() if f'"{reason}"' not in named and f'"{word}"' not in named] == []


def test_tests_skip_through_the_list_only() -> None:
    assert [file for file, name, _ in calls() if name in UNLISTED] == ["tests/tools.py"]


@pytest.mark.parametrize("setting", ["", "0", "1"])
def test_what_ci_provides_may_be_missing_elsewhere_only(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("ROOKERY_CI", setting)
    for reason, listed in REASONS.items():
        assert reason_in(f"{reason}: and: more") == reason
        assert (fault(f"{reason}: more") is not None) == (setting == "1" and listed.in_ci)
    assert fault("needs rooting") is not None
