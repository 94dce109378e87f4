"""Whom an auxiliary observes, what it is told, and what is refused at the start."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from tests.faults import raises
from workers.planning.auxiliary_plan import AuxiliaryPlan, plan_auxiliaries, plan_learners
from workers.planning.policy_plan import plan_policies

LOOK, MOVE = Box(shape=(3,)), Discrete(n=2)
WORLD = World(
    id="w",
    agents=(
        Agent(name="a", observation=LOOK, action=MOVE),
        Agent(name="b", observation=LOOK, action=MOVE),
        Agent(name="c", observation=Box(shape=(4,)), action=MOVE),
    ),
)
CURIOUS = {"algorithm": {"curiosity": {"auxiliary": "novelty"}}}


def on(*policies: str, **keys: Any) -> dict[str, Any]:
    """The auxiliary `novelty`, which observes these."""
    return {"novelty": {"observes": [*policies], **keys}}


def planned(auxiliaries: dict[str, Any], policies: dict[str, Any], world: World = WORLD) -> dict[str, AuxiliaryPlan]:
    """The auxiliaries' plans."""
    run = parse_run({"environment": {"copies": 4}, "auxiliaries": auxiliaries, "policies": policies})
    return plan_auxiliaries(run, plan_policies(run, world))


def test_an_auxiliary_is_told_observations_and_no_actions_J1() -> None:
    plan = planned(on("a", "b"), {"a": CURIOUS})["novelty"]
    assert [field.name for field in plan.layout.fields] == ["observation", "final_observation", "final_row"]
    assert plan.observes == ("a", "b")
    assert plan.agents == (0, 1)
    assert plan.streams == plan.batch_segments == 8
    assert plan.flow == "drop_oldest"  # nobody who acts waits for it
    assert plan.fraction_of_steps(WORLD) == pytest.approx(2 / 3)


def test_its_streams_are_numbered_through_those_it_watches() -> None:
    run = parse_run({"environment": {"copies": 4}, "auxiliaries": on("b", "a"), "policies": {"a": CURIOUS}})
    policies = plan_policies(run, WORLD)
    plan = plan_auxiliaries(run, policies)["novelty"]
    assert [plan.first_stream(policies[name], policies) for name in plan.observes] == [0, 4]
    assert list(plan_learners(run, WORLD)) == ["a", "b", "c", "novelty"]


def test_segments_are_as_long_as_the_longest_of_those_watched() -> None:
    policies = {"a": {**CURIOUS, "segment_length": 8}, "b": {"segment_length": 16}}
    assert planned(on("a", "b"), policies)["novelty"].layout.length == 16


def test_common_observations_are_told_as_the_policy_is_shown_them() -> None:
    agent = Agent(name="a", observation=LOOK, action=MOVE)
    world = World(id="s", population=DictPopulation(agents=(agent,), common=Box(shape=(2,), dtype="int32")))
    plan = planned({"novelty": {}}, {"a": CURIOUS}, world)["novelty"]
    assert plan.layout.fields[0].shape == (5,)
    assert plan.common is None


@pytest.mark.parametrize(
    ("auxiliaries", "policies", "kind", "facts"),
    [
        ({}, {"a": CURIOUS}, "unknown_auxiliary", {"policy": "a", "value": "novelty"}),
        (
            {"other": {}},
            {"a": CURIOUS},
            "auxiliary_observations_differ",
            {"auxiliary": "other", "policy": "a", "shape": [3], "other": "c", "other_shape": [4]},
        ),
        (
            {"other": {"observes": ["a"]}},
            {"a": CURIOUS},
            "unknown_auxiliary",
            {"policy": "a", "value": "novelty", "choices": "one of other"},
        ),
        (on("a"), {}, "auxiliary_unused", {"auxiliary": "novelty"}),
        (on("d"), {"a": CURIOUS}, "auxiliary_observes_no_learner", {"auxiliary": "novelty", "policy": "d"}),
        ({"a": {"observes": ["a"]}}, {}, "auxiliary_named_like_policy", {"auxiliary": "a"}),
        (
            on("a"),
            {"c": CURIOUS},
            "curiosity_observations_differ",
            {"policy": "c", "dtype": "float32", "shape": [4], "auxiliary": "novelty", "other_shape": [3]},
        ),
        (
            on("a", algorithm={"minibatches": 5}),
            {"a": CURIOUS},
            "auxiliary_batch_too_small",
            {"auxiliary": "novelty", "count": 4, "minibatches": 5},
        ),
        (on("a", credits=3), {"a": CURIOUS}, "credits_not_a_multiple", {"auxiliary": "novelty", "credits": 3}),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    auxiliaries: dict[str, Any], policies: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    with raises(ConfigurationError, kind, **facts) as caught:
        planned(auxiliaries, policies)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "kind", "key"),
    [
        ({"colour": 1}, "unknown_key", "colour"),
        ({"network": {"core": "gru"}}, "auxiliary_recurrent", "network.core"),
        ({"algorithm": {"segments": 2}}, "fewer_segments_than_minibatches", "algorithm.segments"),
        ({"fraction": 0}, "value_invalid", "fraction"),
    ],
)
def test_an_unknown_or_impossible_key_is_an_error(keys: dict[str, Any], kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, key=f"auxiliaries.novelty.{key}"):
        parse_run({"auxiliaries": {"novelty": keys}})
