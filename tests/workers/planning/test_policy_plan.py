"""The plan: who plays what, how large rings are, and what cannot work refused with its remedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config.run import PPO, parse_run
from protocol.errors import ConfigurationError
from protocol.experience.ring_buffer import ring_size
from protocol.spaces import Agent, ArrayPopulation, Box, Dict, DictPopulation, Discrete, MultiDiscrete, World
from tests.faults import raises, words_in
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.runtime.seeds import seed_of

SMALL = Box(shape=(3,))
WORLD = World(id="trio", agents=tuple(Agent(name=n, observation=SMALL, action=Discrete(n=2)) for n in "abc"))


def plans(data: dict[str, Any], world: World = WORLD) -> dict[str, PolicyPlan]:
    """The plans of a run."""
    return plan_policies(parse_run(data), world)


def test_every_agent_has_a_policy_of_its_own_by_default_X10() -> None:
    found = plans({"environment": {"copies": 4}})
    assert {name: plan.agents for name, plan in found.items()} == {"a": (0,), "b": (1,), "c": (2,)}
    assert [plan.streams for plan in found.values()] == [4, 4, 4]


@pytest.mark.parametrize(
    ("algorithm", "steps", "gamma"),
    [
        ({"name": "ppo"}, 25, 0.96),
        ({"name": "dqn"}, 25, 0.96),
        ({"name": "ppo"}, 500, 0.99),
        ({"name": "ppo"}, None, 0.99),
        ({"name": "ppo"}, 1, 0.0),
        ({"name": "ppo", "gamma": 0.999}, 25, 0.999),
    ],
)
def test_gamma_looks_no_further_than_episodes_last_unless_it_is_given(
    algorithm: dict[str, Any], steps: int | None, gamma: float
) -> None:
    found = plans({"policy": {"algorithm": algorithm}}, World(id="trio", agents=WORLD.agents, episode_steps=steps))
    assert {getattr(plan.config.algorithm, "discount", None) for plan in found.values()} == {gamma}


@pytest.mark.parametrize(
    ("algorithm", "dtype", "normalized"),
    [
        ({"name": "ppo"}, "float32", True),
        ({"name": "bc"}, "float32", True),
        ({"name": "ppo"}, "uint8", False),
        ({"name": "impala"}, "float32", None),
        ({"name": "ppo"}, "image", False),
        ({"name": "ppo", "normalize_observation": False}, "float32", False),
        ({"name": "ppo", "normalize_observation": True}, "uint8", True),
    ],
)
def test_observations_of_floats_are_normalized_with_ppo_and_what_it_may_start_from(
    algorithm: dict[str, Any], dtype: Any, normalized: bool | None
) -> None:
    box = (
        Box(shape=(3, 3, 3), dtype="float32", low=0, high=1)
        if dtype == "image"
        else Box(shape=(2,), dtype=dtype, low=0, high=1)
    )
    world = World(id="w", agents=(Agent(name="a", observation=box, action=Discrete(n=2)),))
    data: dict[str, Any] = (
        {"actors": 0, "policy": {"dataset": {"path": "x"}}} if algorithm["name"] == "bc" else {"policy": {}}
    )
    data["policy"]["algorithm"] = algorithm
    found = plans(data, world)["a"].config.algorithm
    assert getattr(found, "normalize_observation", None) is normalized


@pytest.mark.parametrize(
    ("action", "given", "found"),
    [
        (Discrete(n=2), {}, (4, 0.01)),
        (Box(shape=(1,), low=-1, high=1), {}, (10, 0.0)),
        (Box(shape=(1,), low=-1, high=1), {"epochs": 3, "entropy_coefficient": 0.1}, (3, 0.1)),
    ],
)
def test_ppo_trains_more_often_on_a_batch_and_without_a_bonus_where_actions_are_numbers(
    action: Any, given: dict[str, Any], found: tuple[int, float]
) -> None:
    world = World(id="w", agents=(Agent(name="a", observation=Box(shape=(2,), low=0, high=1), action=action),))
    algorithm: Any = plans({"policy": {"algorithm": {"name": "ppo", **given}}}, world)["a"].config.algorithm
    assert (algorithm.passes, algorithm.entropy_weight) == found


def test_a_template_counts_for_as_many_as_it_stands_for_K3() -> None:
    """Streams, blocks, and its part of the run's steps, by which schedules go."""
    herd = ArrayPopulation(name="herd", template=WORLD.agents[0], capacity=6)
    world = World(id="w", population=DictPopulation(agents=(herd, *WORLD.agents[1:])))
    found = plans({"environment": {"copies": 4}}, world)
    assert [(plan.streams, plan.block) for plan in found.values()] == [(24, 24), (4, 4), (4, 4)]
    assert [plan.fraction_of_steps(world) for plan in found.values()] == [0.75, 0.125, 0.125]
    with raises(
        ConfigurationError,
        "shared_policy_of_unequal_agents",
        policy="both",
        agent="herd.a",
        count=6,
        other="b",
        other_count=1,
    ):
        plans({"environment": {"copies": 4}, "agents": {"herd.a": "both", "b": "both"}}, world)


def test_the_agents_map_lets_agents_share_a_policy_J2() -> None:
    found = plans({"environment": {"copies": 4}, "agents": {"a": "pair", "c": "pair"}})
    assert {name: plan.agents for name, plan in found.items()} == {"pair": (0, 2), "b": (1,)}
    assert found["pair"].streams == 8
    assert found["pair"].batch_segments == 8


LSTM = {"network": {"core": "lstm"}}


@pytest.mark.parametrize(
    ("policy", "copies", "segments", "minibatches", "rate"),
    [
        ({"algorithm": {"name": "impala"}}, 64, 16, 1, 5e-4),
        ({"algorithm": {"name": "impala"}}, 4, 4, 1, 5e-4),
        ({"algorithm": {"name": "impala", "segments": 32}}, 64, 32, 1, 5e-4),
        ({}, 64, 64, 16, 5e-4),
        (LSTM, 64, 16, 4, 1e-3),
        (LSTM, 2, 2, 1, 1e-3),
        ({**LSTM, "algorithm": {"segments": 64, "minibatches": 8}, "learning_rate": 0.01}, 64, 64, 8, 0.01),
    ],
)
def test_one_step_is_made_of_few_segments_and_parts_of_those_who_remember_have_some(
    policy: dict[str, Any], copies: int, segments: int, minibatches: int, rate: float
) -> None:
    plan = plans({"environment": {"copies": copies}, "policy": policy})["b"]
    assert (plan.batch_segments, plan.minibatches, plan.config.learning_rate) == (segments, minibatches, rate)


@pytest.mark.parametrize(
    ("policy", "copies", "shuffled"),
    [
        ({}, 64, True),
        ({}, 256, False),
        ({"algorithm": {"minibatches": 4}}, 63, True),
        ({"algorithm": {"minibatches": 4}}, 64, False),
        ({"algorithm": {"minibatches": 1}}, 4, False),
        ({"algorithm": {"priority_alpha": 0.5}}, 64, False),
        (LSTM, 64, False),
    ],
)
def test_rows_are_shuffled_where_a_step_would_be_of_fewer_than_16_segments(
    policy: dict[str, Any], copies: int, shuffled: bool
) -> None:
    plan = plans({"environment": {"copies": copies}, "policy": policy})["b"]
    algorithm = plan.config.algorithm
    assert isinstance(algorithm, PPO)
    assert algorithm.shuffles(plan.batch_segments, plan.layout.length, plan.remembers) == shuffled


def of(name: str, **keys: Any) -> dict[str, Any]:
    """The algorithm of a policy."""
    return {"algorithm": {"name": name, **keys}}


@pytest.mark.parametrize(
    ("copies", "policy", "kind", "facts"),
    [
        (6, of("ppo", minibatches=7), "minibatches_do_not_divide_batch", {"policy": "a", "count": 384}),
        (
            64,
            {**of("iqn", buffer_capacity=10_000, learning_starts=9_000), "segment_length": 64},
            "learning_starts_beyond_rings",
            {"value": 9000, "limit": 8192},
        ),
        (
            1,
            {**of("iqn", buffer_capacity=100, learning_starts=1, batch_size=65), "segment_length": 64},
            "batch_exceeds_ring",
            {"value": 65, "limit": 64},
        ),
        (1, {**of("iqn", frames=6), "segment_length": 4}, "segments_shorter_than_frames", {"frames": 6, "expected": 5}),
        (1, {**of("ppo", frames=6), "segment_length": 4}, "segments_shorter_than_frames", {"frames": 6, "expected": 5}),
        (1, {**of("ppo", frames=2), "compile": True}, "compile_not_possible", {"key": "policy.compile"}),
        (1, {"network": {"encoder": "tokens"}, "compile": True}, "compile_not_possible", {"key": "policy.compile"}),
        (64, {"credits": 100}, "credits_not_a_multiple", {"policy": "a", "credits": 100, "choices": "64 or 128"}),
        (
            1,
            {**of("iqn", error_buffer=10, batch_size=64, replay_ratio=4.0), "segment_length": 64},
            "error_buffer_too_small",
            {"policy": "a", "value": 10, "expected": 160},
        ),
        (16, {"compress": ["observation", "smell"]}, "compress_field_unknown", {"field": "smell"}),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy_K11(
    copies: int, policy: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    with raises(ConfigurationError, kind, **facts) as told:
        plans({"environment": {"copies": copies}, "policy": policy})
    assert "\n" not in str(told.value)


@settings(max_examples=100, deadline=None)
@given(
    copies=st.integers(1, 64),
    actors=st.integers(1, 4),
    length=st.integers(1, 32),
    capacity=st.integers(64, 20_000),
    flow=st.sampled_from(["block", "drop_oldest"]),
    shared=st.booleans(),
)
def test_a_ring_always_has_room_for_what_is_written_travels_and_is_kept(
    copies: int, actors: int, length: int, capacity: int, flow: str, shared: bool
) -> None:
    """Rings never keep more than the capacity, except for the one block without which there is no replay."""
    algorithm = {"name": "iqn", "buffer_capacity": capacity, "learning_starts": 1, "batch_size": 1}
    data: dict[str, Any] = {
        "environment": {"copies": copies},
        "actors": actors,
        "policy": {"algorithm": algorithm, "segment_length": length, "flow": flow},
        "agents": dict.fromkeys("abc", "all") if shared else {},
    }
    for plan in plans(data).values():
        assert plan.blocks >= len(plan.agents) + plan.credit_blocks + plan.kept_blocks
        assert plan.kept_rows <= max(capacity, copies * length * actors)
        assert plan.pool_slots >= actors * (plan.credit_blocks + plan.kept_blocks) * copies
        assert plan.credit().idle


@pytest.mark.parametrize(
    ("name", "keys", "flow"),
    [
        ("ppo", {}, "block"),
        ("iqn", {}, "drop_oldest"),
        ("sac", {"policy": {"flow": "block"}}, "block"),
        ("iqn", {"schedule": "lockstep"}, "block"),
    ],
)
def test_without_word_a_replay_drops_its_oldest_and_all_else_waits_A2(name: str, keys: Any, flow: str) -> None:
    policy = {"algorithm": {"name": name}, **keys.get("policy", {})}
    action = Box(shape=(1,), low=-1.0, high=1.0) if name == "sac" else Discrete(n=3)
    world = World(id="w", agents=(Agent(name="a", observation=SMALL, action=action),))
    plan = plans({**keys, "policy": policy}, world)["a"]
    assert plan.flow == flow
    assert plan.credit().paced == (flow == "drop_oldest")


def test_seeds_of_different_purposes_differ_and_repeat() -> None:
    seeds = {seed_of(seed, purpose, i) for seed in range(5) for purpose in ("noise", "weights") for i in range(20)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


BOUNDED, FREE = Box(shape=(2,), low=-1.0, high=1.0), Box(shape=(2,))
ALGORITHMS = {"ppo", "impala", "iqn", "dqn", "c51", "sac", "vdn", "qmix", "bc"}


@pytest.mark.parametrize(
    ("algorithm", "action", "remedy"),
    [
        ("iqn", BOUNDED, {"sac", "ppo"}),
        ("dqn", FREE, {"ppo"}),
        ("dqn", MultiDiscrete(nvec=(2, 2)), {"ppo"}),
        ("sac", MultiDiscrete(nvec=(2, 3)), {"ppo"}),
        ("sac", Dict(spaces={"a": BOUNDED, "b": Discrete(n=3)}), {"ppo"}),
        ("vdn", MultiDiscrete(nvec=(2, 2)), {"environment.teams", "ppo"}),
        ("vdn", Discrete(n=3), {"environment.teams", "dqn", "iqn", "ppo"}),
        ("sac", FREE, {"bounds", "ppo"}),
    ],
)
def test_actions_that_an_algorithm_cannot_learn_are_refused_with_those_that_can(
    algorithm: str, action: Any, remedy: set[str]
) -> None:
    world = World(id="w", agents=(Agent(name="a", observation=SMALL, action=action),))
    with raises(ConfigurationError, "agent_not_learnable", policy="a", agent="a") as caught:
        plans({"policy": {"algorithm": {"name": algorithm}}}, world)
    words = words_in(vars(caught.value)["facts"]["reason"])
    assert words & {*ALGORITHMS, "environment.teams", "bounds"} == {algorithm, *remedy}


@pytest.mark.parametrize("wanted", [-1.0, 1.5])
def test_the_entropy_of_one_choice_is_a_part_of_the_most(wanted: float) -> None:
    world = World(id="w", agents=(Agent(name="a", observation=SMALL, action=Discrete(n=4)),))
    with raises(ConfigurationError, "agent_not_learnable", policy="a") as caught:
        plans({"policy": {"algorithm": {"name": "sac", "target_entropy": wanted}}}, world)
    assert "target_entropy" in words_in(vars(caught.value)["facts"]["reason"])


@pytest.mark.parametrize("algorithm", ["dqn", "vdn"])
def test_what_an_algorithm_cannot_learn_is_refused_before_a_network_of_it_is_built(algorithm: str) -> None:
    """By which it is found out how much a core remembers that torch alone computes."""
    action = MultiDiscrete(nvec=(2, 2)) if algorithm == "dqn" else Discrete(n=3)
    world = World(id="w", agents=(Agent(name="a", observation=SMALL, action=action),))
    with raises(ConfigurationError, "agent_not_learnable", policy="a", agent="a"):
        plans({"policy": {"algorithm": {"name": algorithm}, "network": {"core": "attention"}}}, world)


def team(**parts: tuple[Any, Any]) -> World:
    """One agent made of parts: what each sees and does."""
    seen, done = ({name: part[i] for name, part in parts.items()} for i in range(2))
    return World(id="w", agents=(Agent(name="t", observation=Dict(spaces=seen), action=Dict(spaces=done)),))


def test_members_that_one_network_cannot_serve_get_one_each() -> None:
    for other in ((SMALL, Discrete(n=4)), (Box(shape=(9,)), Discrete(n=3))):
        world = team(a=(SMALL, Discrete(n=3)), b=other)
        with raises(ConfigurationError, "agent_not_learnable", policy="t", agent="t") as caught:
            plans({"policy": {"algorithm": {"name": "vdn"}}}, world)
        assert {"'a'", "'b'", "algorithm.shared"} <= words_in(vars(caught.value)["facts"]["reason"])
        assert plans({"policy": {"algorithm": {"name": "vdn", "shared": False}}}, world)["t"].kept_rows > 0


def test_a_team_is_told_of_the_algorithms_for_teams() -> None:
    world = team(a=(SMALL, Discrete(n=3)), b=(SMALL, Discrete(n=3)))
    with raises(ConfigurationError, "agent_not_learnable", policy="t", agent="t") as caught:
        plans({"policy": {"algorithm": {"name": "dqn"}}}, world)
    assert words_in(vars(caught.value)["facts"]["reason"]) & ALGORITHMS == {"dqn", "vdn", "qmix", "ppo"}


def test_a_million_stacked_frames_take_a_tenth_more_than_their_own_bytes() -> None:
    agent = Agent(name="a", observation=Box(shape=(84, 84), dtype="uint8"), action=Discrete(n=6))
    world = World(id="w", agents=(agent,), episode_steps=27_000)
    algorithm = {"name": "dqn", "frames": 4, "buffer_capacity": 1_000_000}
    run = parse_run({"environment": {"id": "w", "copies": 8}, "policy": {"algorithm": algorithm}})
    plan = plan_policies(run, world)["a"]
    assert ring_size(plan.layout, plan.blocks * plan.block) <= 1.1 * 84 * 84 * plan.kept_rows
    assert plan.kept_rows > 999_000
