"""Several environments in one configuration: every fault of a structure is one sentence, and what is right survives."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config import Run, parse_run
from protocol.environments import EnvironmentConfig
from protocol.errors import ConfigurationError

THREE = {name: {"id": "treasure_hunt", "settings": {"height": 7}} for name in ("small", "medium", "large")}
LADDER: dict[str, Any] = {
    "after": {"medium": ["small"], "large": ["medium"]},
    "threshold": {"small": 1.0, "medium": 2.0},
}
SPLIT: dict[str, Any] = {"train": ["small", "medium"], "test": ["large"]}


def parsed(**environment: Any) -> EnvironmentConfig:
    return parse_run({"environment": environment}).environment


@pytest.mark.parametrize(
    "structure",
    [
        {"split": SPLIT},
        {"curriculum": LADDER},
        {"curriculum": {"after": {"large": ["small", "medium"]}, "threshold": {"small": 1.0, "medium": 2.0}}},
        {"adversarial": {}},
        {"prior": {"small": 3, "medium": 2, "large": 1}},
    ],
    ids=["split", "curriculum", "partial order", "adversarial", "prior"],
)
def test_a_collection_survives_yaml_and_wire_I9(structure: dict[str, Any]) -> None:
    run = parse_run({"environment": {"copies": 4, "members": THREE, **structure}})
    assert run.environment.id == "collection"
    assert Run.model_validate_json(run.model_dump_json()) == run
    assert parse_run(run.model_dump()) == run
    one = run.environment.member("small")
    assert (one.id, one.copies, one.settings, one.members) == ("treasure_hunt", 1, {"height": 7}, None)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({}, "environment: the members small, medium and large have no structure that says when each is played; add one"),
    ({"adversarial": {}, "split": SPLIT}, "split and adversarial are given, and members have one structure; keep one"),
    ({"split": {"train": ["small"], "test": ["larger"]}}, "split.test names 'larger', which is no member; the members"),
    ({"split": {**SPLIT, "test": ["large", "small"]}}, "'small' is in both split.train and split.test; remove it from"),
    ({"split": {"train": ["small", "small"], "test": ["large"]}}, "split.train names 'small' twice; remove one"),
    ({"split": {"train": ["small"], "test": ["large"]}}, "'medium' is in neither split.train nor split.test; add it"),
    ({"split": {**SPLIT, "test": []}}, "environment.split.test: Tuple should have at least 1 item .*; correct it"),
    (
        {"curriculum": {**LADDER, "after": {**LADDER["after"], "small": ["large"]}}},
        "goes in a circle, so none of it is ever open: 'medium' after 'small' after 'large' after 'medium'; remove one",
    ),
    ({"curriculum": {**LADDER, "after": {"small": ["small"]}}}, "in a circle.*: 'small' after 'small'; remove one"),
    ({"curriculum": {**LADDER, "after": {"huge": ["small"]}}}, "curriculum.after names 'huge', which is no member"),
    ({"curriculum": {**LADDER, "after": {"large": ["tiny"]}}}, "curriculum.after names 'tiny', which is no member"),
    ({"curriculum": {**LADDER, "threshold": {"small": 1}}}, "threshold lacks 'medium', which others come after; add"),
    (
        {"curriculum": {**LADDER, "threshold": {"small": 1, "medium": 2, "large": 3}}},
        "curriculum.threshold names 'large', which nothing comes after; remove it",
    ),
    (
        {"curriculum": {**LADDER, "rehearsal": 1}},
        "curriculum.rehearsal: Input should be less than 1, got 1; correct it",
    ),
    ({"prior": {"small": 1, "medium": 1}}, "prior lacks 'large', which is never played then; add it, or remove"),
    ({"prior": {"small": 1, "medium": 1, "large": 0}}, "prior.large: Input should be greater than 0, got 0; correct"),
    (
        {"prior": {"small": 1, "medium": 1, "large": 1, "huge": 1}},
        "prior names 'huge', which is no member; the members",
    ),
    ({"adversarial": {}, "id": "tag"}, "environment: id is tag and there are members, which name their own; remove"),
    ({"adversarial": {}, "settings": {"turns": 9}}, "settings stand beside members, which have their own; move them"),
    ({"members": {"a b": {"id": "tag"}}}, "environment.members.a b: String should match pattern"),
    (
        {"members": {"a": {"id": "tag", "copies": 3}}},
        "unknown configuration key 'environment.members.a.copies'; remove",
    ),
    ({"members": {}}, "environment.members: Dictionary should have at least 1 item .*; correct it"),
    ({"members": None, "id": "collection"}, "environment: id is collection but there are no members; add them, or"),
    ({"members": None, "prior": {"small": 1}}, "environment: prior orders members and there are none; add members"),
]


@pytest.mark.parametrize(("keys", "said"), FAULTS)
def test_what_cannot_be_meant_is_refused_in_one_sentence_I9(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        parsed(**{"members": THREE, **keys})
    assert "\n" not in str(caught.value)


def test_a_circle_is_found_wherever_it_lies_I9() -> None:
    """Not every order that meets again is one: a diamond is none."""
    names = [f"m{i}" for i in range(6)]
    members = {name: {"id": "tag"} for name in names}
    diamond = {"m1": ["m0"], "m2": ["m0"], "m3": ["m1", "m2"], "m4": ["m3", "m0"], "m5": ["m4", "m1"]}
    threshold = dict.fromkeys(names[:5], 0.0)
    assert parsed(members=members, curriculum={"after": diamond, "threshold": threshold}).curriculum is not None
    circle = {**diamond, "m1": ["m0", "m4"]}
    with pytest.raises(ConfigurationError, match=r"'m1' after 'm4' after 'm3' after 'm1'; remove"):
        parsed(members=members, curriculum={"after": circle, "threshold": threshold})
    behind = {"m5": circle["m5"], **circle}  # begins outside of it
    with pytest.raises(ConfigurationError, match=r": 'm4' after 'm3' after 'm1' after 'm4'; remove"):
        parsed(members=members, curriculum={"after": behind, "threshold": threshold})


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        ({"split": SPLIT}, ["large"]),
        ({"split": {"train": ["large"], "test": ["small", "medium"]}}, ["small", "medium"]),
        ({"curriculum": LADDER}, ["small", "medium", "large"]),
        ({"adversarial": {}}, ["small", "medium", "large"]),
    ],
)
def test_evaluation_has_the_test_side_or_all_alike_I9(structure: dict[str, Any], expected: list[str]) -> None:
    config = parsed(members=THREE, copies=8, **structure).evaluation()
    assert config.members is not None
    assert [*config.members] == expected
    assert (config.split, config.curriculum, config.adversarial) == (None, None, None)
    assert config.prior == dict.fromkeys(expected, 1.0)
    assert EnvironmentConfig.model_validate_json(config.model_dump_json()) == config


def test_evaluation_leaves_one_environment_and_a_prior_as_they_are() -> None:
    for config in (parsed(), parsed(members=THREE, prior={"small": 1, "medium": 2, "large": 3})):
        assert config.evaluation() is config
