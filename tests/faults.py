"""Errors by their kind and facts: tests hold whatever the sentences say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from protocol.errors import RookeryError

__all__ = ["kinds_in", "raises", "words_in"]


@contextmanager
def raises(expected: type[Exception], kind: str, /, **facts: Any) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Like pytest.raises, for an error of `kind` that has at least these `facts`. Of pydantic's errors it is the first
    that a validator of ours raised."""
    with pytest.raises(expected) as caught:
        yield caught
    found = caught.value
    if isinstance(found, ValidationError):
        found = found.errors()[0].get("ctx", {}).get("error", found)
    assert isinstance(found, RookeryError), found
    assert (found.kind, {name: found.facts.get(name) for name in facts}) == (kind, facts), found.coded


def kinds_in(text: str) -> list[str]:
    """The kinds of the errors that a command, a log or a refusal tells."""
    return re.findall(r" \[([a-z][a-z0-9_]*)\]", text)


def words_in(text: str) -> set[str]:
    """The words of a sentence, without its marks: to see whether it tells a fact."""
    return {*re.findall(r"[^\s;,:()\[\]]+", text)}
