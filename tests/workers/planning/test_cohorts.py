"""Who shares a learner process: what may be asked for, what is refused, and what `auto` makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete, World
from tests.faults import raises
from tests.workers.planning.test_policy_plan import plans
from workers.planning.cohorts import BRANCHES, check_cohorts, learners_of, stacking_key, stacks_of

OTHER = {"policies": {"b": {"network": {"hidden": [8]}}}}


def learners(data: dict[str, Any]) -> dict[str, list[str]]:
    """The learners of a run of the policies a, b and c."""
    kinds = {name: stacking_key(plan) for name, plan in plans(data).items()}
    return learners_of(parse_run(data), ["a", "b", "c"], kinds)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, {"learner-a": ["a"], "learner-b": ["b"], "learner-c": ["c"]}),
        ({"learners": "cohort"}, {"learner-0": ["a", "b", "c"]}),
        ({"num_learner_processes": 2}, {"learner-0": ["a", "c"], "learner-1": ["b"]}),
        ({"learners": "cohort", "num_learner_processes": 2}, {"learner-0": ["a", "c"], "learner-1": ["b"]}),
        ({"learners": {"team": ["a", "c"]}}, {"learner-team": ["a", "c"], "learner-b": ["b"]}),
        ({"learners": {"a": ["c", "a"]}}, {"learner-a": ["a", "c"], "learner-b": ["b"]}),
        ({"learners": "auto"}, {"learner-a": ["a"], "learner-b": ["b"], "learner-c": ["c"]}),
    ],
)
def test_policies_share_the_processes_that_are_asked_for_A10(
    data: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    assert learners(data) == expected


def test_auto_makes_a_cohort_of_enough_policies_of_one_kind() -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    kinds = {"a": "x", "b": "x", "c": "y", "d": "x", "e": "x"}
    found = learners_of(parse_run({"learners": "auto"}), names, kinds)
    assert found == {"learner-a": ["a", "b", "d", "e"], "learner-c": ["c"], "learner-f": ["f"]}


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [[*"abcdefghi"], ["z"]]),
        (2, [["a", "c", "e", "g", "i"], ["b", "d", "f", "h"], ["z"]]),
        (9, [["a", "c", "e", "g", "i"], ["b", "d", "f", "h"], ["z"]]),
        (10, [[name] for name in "abcdefghiz"]),
    ],
    ids=["one", "two", "no-stack-of-less-than-four", "one-for-each"],
)
def test_on_one_machine_alike_policies_share_as_many_processes_as_it_has_cores(
    cores: int, expected: list[list[str]]
) -> None:
    run = parse_run({}).on_cores(cores)
    kinds = dict.fromkeys("abcdefghi", "x") | {"z": ""}
    assert sorted(learners_of(run, [*"abcdefghiz"], kinds).values()) == expected


@pytest.mark.parametrize(
    "said", [{"learners": "process"}, {"num_learner_processes": 3}, {"cohort": "in_turn"}, {"schedule": "lockstep"}]
)
def test_what_is_said_of_learners_holds_on_any_machine(said: dict[str, Any]) -> None:
    run = parse_run({"environment": {"copies": 16}, **said})
    assert run.on_cores(2) == run


def test_policies_are_of_one_kind_whose_rates_and_clipping_alone_differ() -> None:
    one = plans({"policies": {"b": {"learning_rate": 0.1, "max_grad_norm": 9.0}}})
    assert stacking_key(one["a"]) == stacking_key(one["b"]) != ""
    for b in ({"network": {"hidden": [8]}}, {"algorithm": {"gamma": 0.9}}, {"segment_length": 8}, {"compile": True}):
        other = plans({"policies": {"b": b}})
        assert stacking_key(other["a"]) != stacking_key(other["b"])
    agents = [Agent(name=name, observation=Box(shape=(2,)), action=Discrete(n=n)) for name, n in (("a", 2), ("b", 3))]
    other = plans({}, World(id="w", agents=tuple(agents)))
    assert stacking_key(other["a"]) != stacking_key(other["b"]), "a choice of two and one of three lie in equal memory"
    for algorithm in (
        {"name": "c51"},
        {"name": "ppo", "priority_alpha": 0.5},
        {"name": "dqn", "entry": "workers.algorithms.dqn:DQNUpdate"},
    ):
        assert stacking_key(plans({"policy": {"algorithm": algorithm}})["a"]) == ""


def test_what_is_frozen_or_kept_near_falls_out_of_the_stack_and_what_only_starts_elsewhere_does_not() -> None:
    for keys in ({"freeze": "heads"}, {"kl": 0.1}):
        assert stacking_key(plans({"policy": {"start": {"path": "x", **keys}}})["a"]) == ""
    assert stacking_key(plans({"policy": {"start": "x"}})["a"]) == stacking_key(plans({})["a"]) != ""


@pytest.mark.parametrize(
    ("name", "own", "shared"),
    [
        ("iqn", {"epsilon": 0.5, "tau": 0.1, "target_update_freq": 9, "buffer_capacity": 9_999}, {"kappa": 0.5}),
        (
            "dqn",
            {"epsilon_decay": 0.5, "exploration_fraction": 0.5, "exploration_steps": 9, "replay_ratio": 1.0},
            {"batch_size": 3},
        ),
        ("ppo", {"entropy_coefficient": 0.5, "anneal_entropy": True, "anneal_learning_rate": False}, {"clip": 0.1}),
    ],
)
def test_policies_of_one_kind_have_schedules_of_their_own(
    name: str, own: dict[str, object], shared: dict[str, object]
) -> None:
    def kinds(algorithm: dict[str, object]) -> list[str]:
        found = plans({"policy": {"algorithm": {"name": name}}, "policies": {"b": {"algorithm": algorithm}}})
        return [stacking_key(found[policy]) for policy in "ab"]

    one, other = kinds(own)
    assert one == other != ""
    one, other = kinds(shared)
    assert one != other


@pytest.mark.parametrize(
    ("data", "kind", "facts"),
    [
        ({"learners": "process", "num_learner_processes": 2}, "learners_conflict", {"reason": "is process"}),
        ({"learners": {"t": ["a"]}, "num_learner_processes": 2}, "learners_conflict", {"reason": "lists cohorts"}),
        ({"learners": {"t": ["a"], "u": ["a"]}}, "policy_in_two_cohorts", {"policy": "a"}),
        (
            {"learners": {"t": ["a", "x"]}},
            "cohort_member_unknown",
            {"cohort": "t", "value": "x", "choices": ["a", "b", "c"]},
        ),
        ({"learners": {"a": ["b"]}}, "cohort_named_like_policy", {"cohort": "a"}),
        (
            {"learners": "cohort", "cohort": "stacked", **OTHER},
            "cohort_policies_not_stackable",
            {"policy": "a", "other": "b", "peer": "learner-0"},
        ),
        ({"cohort": "branches", "device": "cpu"}, "cohort_branches_impossible", {"reason": "device is 'cpu'"}),
        (
            {"cohort": "branches", "schedule": "lockstep"},
            "cohort_branches_impossible",
            {"reason": "schedule is lockstep"},
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(data: dict[str, Any], kind: str, facts: dict[str, Any]) -> None:
    with raises(ConfigurationError, kind, **facts):
        check_cohorts(parse_run(data), dict(plans({k: v for k, v in data.items() if k == "policies"})))


@pytest.mark.parametrize(("cohort", "enough"), [("auto", 4), ("stacked", 2), ("in_turn", 99)])
def test_policies_of_one_kind_are_stacked_where_there_are_enough_of_them(cohort: str, enough: int) -> None:
    run, plan = parse_run({"cohort": cohort}), plans({})["a"]
    other = plans(OTHER)["b"]
    for units, pays in ((32, True), (2048, False)):
        memory = plans({"policy": {"network": {"core": {"name": "gru", "size": units}}}})["a"]
        for count in (3, 5):
            stacked = all(map(bool, stacks_of(run, [memory] * count)))
            assert stacked == (count >= enough and (pays or cohort == "stacked")), "large ones take as long in turn"
    for count in range(1, 6):
        assert all(map(bool, stacks_of(run, [plan] * count))) == (count >= enough)
        assert stacks_of(run, [*[plan] * count, other])[-1] == ""


def test_branches_are_for_cuda_and_auto_takes_them_there_for_what_is_not_stacked() -> None:
    plan, other = plans({})["a"], plans(OTHER)["b"]
    recurrent = plans({"policy": {"network": {"core": "gru"}}})["a"]
    replayed, atoms = (plans({"policy": {"algorithm": {"name": name}}})["a"] for name in ("iqn", "c51"))
    run = parse_run({"cohort": "branches"})
    assert stacks_of(run, [plan, other, replayed, atoms], "cuda") == [BRANCHES, BRANCHES, BRANCHES, ""]
    with raises(ConfigurationError, "cohort_branches_need_cuda", device="cpu"):
        stacks_of(run, [plan, other], "cpu")
    auto = parse_run({})
    assert stacks_of(auto, [recurrent, other, replayed, atoms], "cuda") == [BRANCHES, BRANCHES, BRANCHES, ""]
    assert stacks_of(auto, [recurrent] * 5, "cuda") == [BRANCHES] * 5
    found = stacks_of(auto, [plan, plan, plan, plan, recurrent, other], "cuda")
    assert found == [stacking_key(plan)] * 4 + [BRANCHES] * 2
    assert stacks_of(auto, [plan, plan, plan, plan, recurrent], "cuda")[4] == "", "one alone has no company"
    assert stacks_of(auto, [recurrent, other], "cpu") == ["", ""]
