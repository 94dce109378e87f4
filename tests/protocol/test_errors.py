"""Every error of ours has a kind with one sentence, facts, and an exit code of its class."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path
from string import Formatter

import pytest

from protocol import errors
from protocol.errors import ConfigurationError, Timeout, disk_fault
from protocol.errors.sentences import SENTENCES
from tests.error_reference import PATH, classes, raised, reference

pytestmark = pytest.mark.usefixtures("uncollected")
RESERVED = {"args", "kind", "facts", "coded", "heard", "within", "add_note", "with_traceback", "exit_code"}


def facts_of(sentence: str) -> set[str]:
    """The names in braces."""
    return {name for _, name, _, _ in Formatter().parse(sentence) if name is not None}


def test_exit_codes_are_distinct_and_not_zero() -> None:
    named = [getattr(errors, name) for name in errors.__all__]
    every = [one for one in named if isinstance(one, type)]
    found = [one for one in every if issubclass(one, errors.RookeryError)]
    assert every == found
    assert len(found) > 5
    codes = [cls.exit_code for cls in found]
    assert 0 not in codes
    assert len(set(codes)) == len(codes)


def test_a_kind_has_one_sentence_and_one_type() -> None:
    times = Counter(kind for kinds in SENTENCES.values() for kind in kinds)
    assert [kind for kind, count in times.items() if count > 1] == []
    assert set(SENTENCES) == {one.name for one in classes()}


def test_whoever_raises_an_error_names_a_kind_of_its_type_and_all_its_facts() -> None:
    wrong = [
        f"{one.file}:{one.line}: {one.name}({one.kind!r})"
        for one in raised()
        if (sentence := SENTENCES[one.name].get(one.kind)) is None
        or not (one.open or facts_of(sentence) <= one.facts)
        or one.facts & RESERVED
    ]
    assert wrong == []


def test_every_sentence_is_said_somewhere() -> None:
    used = {(one.name, one.kind) for one in raised()}
    assert [kind for name, kinds in SENTENCES.items() for kind in kinds if (name, kind) not in used] == []


def test_the_reference_is_what_the_sentences_say() -> None:
    assert PATH.read_text(encoding="utf-8") == reference(), "run python -m tests.error_reference"


def test_facts_are_attributes_and_lists_are_read_with_commas() -> None:
    fault = ConfigurationError("kubernetes_component_unknown", value="x", file="k8s", choices=["a", "b"])
    assert (fault.kind, fault.value, fault.choices) == ("kubernetes_component_unknown", "x", ["a", "b"])
    assert "a, b" in str(fault)
    with pytest.raises(AttributeError, match="no_such_fact"):
        _ = fault.no_such_fact


def test_an_error_keeps_its_kind_through_text_and_places() -> None:
    fault = ConfigurationError("kubernetes_component_unknown", value="x", file="k8s", choices=["a"])
    again = ConfigurationError.heard(fault.coded)
    assert (str(again), again.kind, again.exit_code) == (str(fault), fault.kind, fault.exit_code)
    inner = fault.within("policies.red", key="policies.red")
    assert (inner.kind, inner.key, inner.value) == (fault.kind, "policies.red", "x")
    assert str(inner) == f"policies.red: {fault}"


def test_what_another_process_said_without_a_kind_is_told_as_it_is() -> None:
    fault = Timeout.heard("Killed")
    assert (str(fault), fault.kind) == ("Killed", "unexplained")


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, "disk_full"), (errno.EACCES, "file_not_writable")])
def test_a_file_that_cannot_be_written_is_a_fault_of_the_disk(tmp_path: Path, number: int, kind: str) -> None:
    told = disk_fault(OSError(number, "why", str(tmp_path)), "another --out")
    assert told is not None
    assert (told.kind, told.file, told.other) == (kind, str(tmp_path), "another --out")
    assert disk_fault(OSError(errno.ECONNRESET, "reset")) is None
