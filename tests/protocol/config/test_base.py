"""Settings that somebody else gives a meaning: what cannot be written and read again as it was is refused by name."""

from __future__ import annotations

import datetime
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.config.base import ConfigModel, Settings
from tests.faults import raises


class Part(ConfigModel):
    """A section with settings in it."""

    settings: Settings


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
SETTINGS = st.dictionaries(
    st.text(),
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)),
    max_size=4,
)


@given(settings=SETTINGS)
@hypothesis.settings(max_examples=30, deadline=None)
def test_what_json_can_say_and_infinite_numbers_stay_as_they_are(settings: dict[str, Any]) -> None:
    part = Part(settings=settings)
    assert part.settings == settings
    assert Part.model_validate_json(part.model_dump_json()) == part
    assert Part(settings=json.loads(json.dumps(settings))) == part


@pytest.mark.parametrize(
    "value",
    [
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 12),
        float("nan"),
        {1: "one"},
        {None: 0},
        (1, 2),
        b"bytes",
        {1, 2},
    ],
    ids=["date", "time", "nan", "key_number", "key_null", "tuple", "bytes", "set"],
)
def test_what_would_be_another_when_read_again_is_refused_with_the_remedy(value: Any) -> None:
    with raises(ValidationError, "settings_not_plain_data") as caught:
        Part(settings={"good": 1, "deep": [{"er": value}]})
    assert "settings\n" in str(caught.value), "where it is"


def test_settings_that_contain_themselves_are_refused() -> None:
    settings: dict[str, Any] = {}
    settings["again"] = settings
    with pytest.raises(ValidationError):
        Part(settings=settings)
