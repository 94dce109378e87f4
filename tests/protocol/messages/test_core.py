"""Messages are frozen and say which release's schema they speak."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol import SCHEMA
from protocol.messages.core import Join, Refusal, Route
from tests.protocol.strategies import CLASSES


def test_every_message_has_a_type_of_its_own_and_the_schema() -> None:
    types = [cls.type for cls in CLASSES]
    assert len(set(types)) == len(types) == 24
    assert Refusal(reason="no").schema_number == SCHEMA
    assert {cls.type for cls in CLASSES if cls.arrays} == {
        "segments",
        "weights",
        "part",
        "graph",
        "observe",
        "act",
        "end",
    }
    assert {cls.type for cls in CLASSES if cls.stable} == {"join", "refusal", "beacon", "hello", "fault"}


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Refusal(reason="no").reason = "yes"


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "-a", "a b", "a\n", "ä", "a\0"])
def test_a_name_that_becomes_a_path_or_topic_holds_only_plain_characters(name: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        Join(role="actor", name=name, token="t", release="0", host="h", pid=1)
    with pytest.raises(ValidationError, match="pattern"):
        Route(policy=name, learner="l", incarnation=1, experience="e", weights="w", acknowledgements="a")
