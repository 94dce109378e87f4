"""Several environments in one configuration: every fault of a structure is one sentence, and what is right survives."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config.environment import EnvironmentConfig
from protocol.config.run import Run, parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises

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


FAULTS: list[tuple[dict[str, Any], str, dict[str, str]]] = [
    ({}, "structure_missing", {"key": "environment", "members": "small, medium and large"}),
    ({"adversarial": {}, "split": SPLIT}, "several_structures", {"value": "split and adversarial"}),
    (
        {"split": {"train": ["small"], "test": ["larger"]}},
        "member_unknown",
        {"key": "environment.split.test", "environment": "larger"},
    ),
    ({"split": {**SPLIT, "test": ["large", "small"]}}, "member_in_both_splits", {"environment": "small"}),
    (
        {"split": {"train": ["small", "small"], "test": ["large"]}},
        "split_repeats_member",
        {"key": "environment.split.train", "environment": "small"},
    ),
    ({"split": {"train": ["small"], "test": ["large"]}}, "member_in_no_split", {"environment": "medium"}),
    ({"split": {**SPLIT, "test": []}}, "value_invalid", {"key": "environment.split.test", "value": "[]"}),
    (
        {"curriculum": {**LADDER, "after": {**LADDER["after"], "small": ["large"]}}},
        "curriculum_circular",
        {"value": "'medium' after 'small' after 'large' after 'medium'"},
    ),
    (
        {"curriculum": {**LADDER, "after": {"small": ["small"]}}},
        "curriculum_circular",
        {"value": "'small' after 'small'"},
    ),
    (
        {"curriculum": {**LADDER, "after": {"huge": ["small"]}}},
        "member_unknown",
        {"key": "environment.curriculum.after", "environment": "huge"},
    ),
    (
        {"curriculum": {**LADDER, "after": {"large": ["tiny"]}}},
        "member_unknown",
        {"key": "environment.curriculum.after", "environment": "tiny"},
    ),
    (
        {"curriculum": {**LADDER, "threshold": {"small": 1}}},
        "curriculum_threshold_missing",
        {"key": "environment.curriculum.threshold", "environment": "medium"},
    ),
    (
        {"curriculum": {**LADDER, "threshold": {"small": 1, "medium": 2, "large": 3}}},
        "curriculum_threshold_unused",
        {"key": "environment.curriculum.threshold", "environment": "large"},
    ),
    (
        {"curriculum": {**LADDER, "rehearsal": 1}},
        "value_invalid",
        {"key": "environment.curriculum.rehearsal", "value": "1"},
    ),
    ({"prior": {"small": 1, "medium": 1}}, "prior_lacks_member", {"key": "environment.prior", "environment": "large"}),
    (
        {"prior": {"small": 1, "medium": 1, "large": 0}},
        "value_invalid",
        {"key": "environment.prior.large", "value": "0"},
    ),
    (
        {"prior": {"small": 1, "medium": 1, "large": 1, "huge": 1}},
        "member_unknown",
        {"key": "environment.prior", "environment": "huge"},
    ),
    ({"adversarial": {}, "id": "tag"}, "id_beside_members", {"key": "environment.id", "value": "tag"}),
    ({"adversarial": {}, "settings": {"turns": 9}}, "settings_beside_members", {"key": "environment.settings"}),
    ({"members": {"a b": {"id": "tag"}}}, "value_invalid", {"key": "environment.members.a b"}),
    ({"members": {"a": {"id": "tag", "copies": 3}}}, "unknown_key", {"key": "environment.members.a.copies"}),
    ({"members": {}}, "value_invalid", {"key": "environment.members", "value": "{}"}),
    ({"members": None, "id": "collection"}, "collection_without_members", {"value": "collection"}),
    ({"members": None, "prior": {"small": 1}}, "structure_without_members", {"key": "environment.prior"}),
]


@pytest.mark.parametrize(("keys", "kind", "facts"), FAULTS)
def test_what_cannot_be_meant_is_refused_in_one_sentence_I9(
    keys: dict[str, Any], kind: str, facts: dict[str, str]
) -> None:
    with raises(ConfigurationError, kind, **facts) as caught:
        parsed(**{"members": THREE, **keys})
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("environment") or kind == "unknown_key", "its place"


def test_a_circle_is_found_wherever_it_lies_I9() -> None:
    """Not every order that meets again is one: a diamond is none."""
    names = [f"m{i}" for i in range(6)]
    members = {name: {"id": "tag"} for name in names}
    diamond = {"m1": ["m0"], "m2": ["m0"], "m3": ["m1", "m2"], "m4": ["m3", "m0"], "m5": ["m4", "m1"]}
    threshold = dict.fromkeys(names[:5], 0.0)
    assert parsed(members=members, curriculum={"after": diamond, "threshold": threshold}).curriculum is not None
    circle = {**diamond, "m1": ["m0", "m4"]}
    with raises(ConfigurationError, "curriculum_circular", value="'m1' after 'm4' after 'm3' after 'm1'"):
        parsed(members=members, curriculum={"after": circle, "threshold": threshold})
    behind = {"m5": circle["m5"], **circle}  # begins outside of it
    with raises(ConfigurationError, "curriculum_circular", value="'m4' after 'm3' after 'm1' after 'm4'"):
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
