"""Names of other libraries lead to keys that there are, and to those that the documents give."""

from __future__ import annotations

import re

import pytest

from launch.config_loader import load
from protocol.config.run import parse_run
from protocol.config.synonyms import SYNONYMS
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.tools import ROOT

ALGORITHMS = ("ppo", "dqn", "c51")


@pytest.mark.parametrize("key", sorted({key for key, _ in SYNONYMS.values() if key}))
def test_each_leads_to_a_key(key: str) -> None:
    for algorithm in ALGORITHMS:
        data: dict[str, object] = {"policy": {"algorithm": {"name": algorithm}}}
        *path, last = key.split(".")
        place = data
        for part in path:
            place = place.setdefault(part, {})  # type: ignore[assignment]
        place[last] = object()
        try:
            parse_run(data)
        except ConfigurationError as fault:
            if fault.kind != "unknown_key":
                return
    raise AssertionError(key)


def test_where_there_is_no_such_key_it_is_said_why() -> None:
    assert all(key or why for key, why in SYNONYMS.values())
    for name in ("target_kl", "verbose", "policy.optimizer"):
        why = SYNONYMS[name.rpartition(".")[2]][1]
        with raises(ConfigurationError, "unknown_key", key=name, meant=f" (there is none here: {why})"):
            load("cartpole", [f"{name}=1"])


def test_documents_say_the_same_of_a_name() -> None:
    """Where a row of a table is about one name alone, or about as many as it has keys."""
    text = "".join(page.read_text() for page in sorted((ROOT / "launch" / "docs" / "moving").glob("*.md")))
    said = 0
    for theirs, ours in re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE):
        names, keys = re.findall(r"`-*([a-z_]+)`", theirs), re.findall(r"`([a-z_.]+)[^`]*`", ours)
        for name, key in zip(names, keys, strict=False) if len(names) == len(keys) else ():
            if name in SYNONYMS and not (name == "ent_coef" and "temperature" in ours):  # which is SAC's
                said += 1
                target, how = SYNONYMS[name]
                last = key.rpartition(".")[2]
                assert last in (name, target.rpartition(".")[2]) or key in how, (name, key)
    assert said > 10
