"""The tree is plain data: populations in populations, tags that hold, names that are safe, limits for strangers."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from pydantic import ValidationError

from protocol.errors import EnvironmentFault, WireError
from protocol.spaces import (
    Action,
    Agent,
    ArrayPopulation,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    MultiDiscrete,
    Observation,
    Tuple,
    World,
    parse_world,
)
from tests.faults import raises
from tests.protocol.spaces.spaces_strategies import SLOW, worlds


def _agent(name: str) -> Agent:
    return Agent(name=name, observation=Box(shape=(2, 3), dtype="uint8", low=0, high=255), action=Discrete(n=4))


def _world(*members: Any, **more: Any) -> World:
    return World(id="w", population=DictPopulation(agents=members, **more))


CRITIC = Observation(
    components={
        "eye": Component(space=Box(shape=(4,))),
        "truth": Component(space=Dict(spaces={"map": Box(shape=(9,))}), evaluation_only=True),
    }
)
BODY = Dict(spaces={"move": Discrete(n=4), "look": Box(shape=(2,))})


def test_agents_and_places_are_found_by_name() -> None:
    world = World(id="w", agents=(_agent("a"), _agent("b.1")))
    assert world.agent("b.1").observation.size == 6
    for find in (world.agent, world.place):
        with pytest.raises(KeyError):
            find("c")


@given(worlds())
@SLOW
def test_any_tree_is_the_same_after_json_I1(world: World) -> None:
    text = world.model_dump_json()
    again = parse_world(text)
    assert again == world
    assert hash(again) == hash(world)
    assert again.model_dump_json() == text
    assert again.agents == world.agents
    assert [place.leaves for place in again.places] == [place.leaves for place in world.places]
    assert World.model_validate(json.loads(text)) == world


def test_agents_of_populations_in_populations_have_dotted_names_in_a_fixed_order_I1() -> None:
    red = DictPopulation(name="red", agents=(_agent("scout"), _agent("medic")))
    herd = ArrayPopulation(name="herd", template=_agent("sheep"), capacity=3)
    world = _world(_agent("judge"), DictPopulation(name="field", agents=(red, herd)), _agent("clerk"))
    names = ["judge", "field.red.scout", "field.red.medic", "field.herd.sheep", "clerk"]
    assert [agent.name for agent in world.agents] == names
    assert [place.name for place in world.places] == names
    place = world.place("field.red.scout")
    assert [path for path, _ in place.populations] == ["", "field", "field.red"]
    assert place.populations[-1][1] == red


def test_agents_alone_are_a_population_without_further_structure() -> None:
    assert World(id="w", agents=(_agent("a"),)) == _world(_agent("a"))
    plain = {
        "id": "w",
        "agents": [{"name": "a", "observation": {"kind": "box", "shape": [2]}, "action": {"kind": "discrete", "n": 2}}],
    }
    assert World.model_validate(plain).agents[0].action == Discrete(n=2)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", ".hidden", "-x", "a b", "ä", "a\n", "a\0", "x" * 65])
def test_a_name_that_could_leave_a_folder_or_a_topic_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        _agent(name)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "-x", "a b", "ä", "x" * 65])
def test_a_key_that_could_not_be_part_of_a_field_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Dict(spaces={name: Discrete(n=2)})
    with pytest.raises(ValidationError):
        Observation(components={name: Component(space=Discrete(n=2))})


def test_a_world_without_agents_or_with_unknown_facts_is_refused() -> None:
    with pytest.raises(ValidationError):
        World(id="w", agents=())
    with pytest.raises(ValidationError):
        World.model_validate({"id": "w", "agents": [_agent("a").model_dump()], "teams": 2})


def _refused(kind: str, data: Any, **facts: object) -> None:
    """As no world, for a reason of that `kind`."""
    with pytest.raises(WireError) as refusal:
        parse_world(data if isinstance(data, str | bytes) else json.dumps(data))
    assert refusal.value.kind == "world_malformed"
    reason = refusal.value.reason
    assert (reason.kind, {name: reason.facts.get(name) for name in facts}) == (kind, facts)
    assert str(reason) in str(refusal.value)
    assert "\n" not in str(refusal.value)


SEEN = "population.dictionary.agents.0.agent.observation"


def _with(observation: Any, action: Any = None, **more: Any) -> dict[str, Any]:
    agent = {"name": "a", "observation": observation, "action": action or {"kind": "discrete", "n": 2}, **more}
    return {"id": "w", "agents": [agent]}


@pytest.mark.parametrize(
    ("space", "kind", "facts"),
    [
        ({"kind": "box", "shape": [-1]}, "value_invalid", {"key": f"{SEEN}.box.shape.0", "value": "-1"}),
        ({"kind": "box", "shape": [10**6, 10**6]}, "space_too_large", {"limit": 2**31}),
        (
            {"kind": "box", "shape": [2], "low": [0, 1, 2]},
            "space_values_miscounted",
            {"field": "low", "count": 3, "expected": 2},
        ),
        ({"kind": "box", "shape": [2], "low": 1, "high": 0}, "box_bounds_crossed", {"low": 1, "high": 0}),
        ({"kind": "box", "shape": [2], "low": [0, 3], "high": [1, 2]}, "box_bounds_crossed", {"low": 3, "high": 2}),
        (
            {"kind": "box", "shape": [2], "dtype": "uint8", "low": -1},
            "box_bound_beyond_dtype",
            {"value": -1, "dtype": "uint8"},
        ),
        ({"kind": "box", "shape": [2], "dtype": "int8", "low": 0.5}, "box_bound_not_whole", {"value": 0.5}),
        (
            {"kind": "box", "shape": [2], "dtype": "float16", "high": 1e9},
            "box_bound_beyond_dtype",
            {"dtype": "float16"},
        ),
        (
            {"kind": "discrete", "n": 200, "dtype": "int8"},
            "choices_exceed_dtype",
            {"least": 0, "most": 199, "dtype": "int8"},
        ),
        ({"kind": "multi_discrete", "nvec": [2, 2], "shape": [3]}, "choices_do_not_fill_shape", {"count": 2}),
        (
            {"kind": "multi_discrete", "nvec": [2], "start": [0, 0]},
            "space_values_miscounted",
            {"field": "start", "count": 2, "expected": 1},
        ),
        ({"kind": "text", "max_length": 2, "min_length": 3}, "text_lengths_crossed", {"low": 3, "high": 2}),
        ({"kind": "sequence", "space": {"kind": "discrete", "n": 2}}, "value_invalid", {"key": SEEN}),
        ({"kind": "dict", "spaces": {}}, "agent_sees_nothing", {"agent": "a"}),
    ],
)
def test_a_space_that_cannot_be_is_refused_with_one_sentence(space: Any, kind: str, facts: dict[str, Any]) -> None:
    _refused(kind, _with(space), **facts)


def test_not_a_number_and_infinity_are_no_bounds() -> None:
    for text in ("NaN", "Infinity", "1e999"):
        _refused("value_invalid", json.dumps(_with({"kind": "box", "shape": [1], "low": 7})).replace("7", text))


def test_members_of_one_name_are_refused_and_so_are_agents_of_one_path() -> None:
    with raises(ValidationError, "population_member_twice", population="all", value="a"):
        _world(_agent("a"), _agent("a"))
    with raises(ValidationError, "world_path_taken_twice", value="p.a"):
        _world(_agent("p.a"), DictPopulation(name="p", agents=(_agent("a"),)))
    inner = DictPopulation(name="q", agents=(_agent("a"),))
    with raises(ValidationError, "world_path_taken_twice", value="p.q"):
        _world(DictPopulation(name="p.q", agents=(_agent("b"),)), DictPopulation(name="p", agents=(inner,)))
    with raises(ValidationError, "agent_named_like_slot", value="h.a.1", agent="h.a"):
        _world(_agent("h.a.1"), ArrayPopulation(name="h", template=_agent("a"), capacity=2))
    long = DictPopulation(name="p" * 40, agents=(_agent("a" * 40),))
    with raises(ValidationError, "agent_name_too_long", agent=f"{'p' * 40}.{'a' * 40}"):
        _world(long)
    with raises(ValidationError, "agent_name_too_long", agent=f"{'p' * 30}.{'a' * 30}.999"):
        _world(ArrayPopulation(name="p" * 30, template=_agent("a" * 30), capacity=1000))


def test_a_stranger_cannot_send_a_tree_too_deep_or_too_large() -> None:
    nested: Any = {"kind": "discrete", "n": 2}
    for _ in range(13):
        nested = {"kind": "tuple", "spaces": [nested]}
    parse_world(json.dumps(_with(nested)))  # population, agent, 13 tuples and the leaf: 16
    _refused("world_tree_too_deep", _with({"kind": "tuple", "spaces": [nested]}), limit=16)
    wide = [
        {"kind": "agent", **_with({"kind": "box", "shape": [1]})["agents"][0], "name": f"a{i}"} for i in range(3333)
    ]
    parse_world(json.dumps({"id": "w", "agents": wide}))  # 1 + 3333 * 3 = 10,000
    _refused("world_tree_too_large", {"id": "w", "agents": [*wide, {**wide[0], "name": "b"}]}, limit=10_000)
    told = {f"t{i}": {"kind": "discrete", "n": 2} for i in range(3300)}
    crowd = {"kind": "dictionary", "agents": wide[:2000], "common": {"kind": "dict", "spaces": told}}
    _refused("world_leaves_too_many", {"id": "w", "population": crowd}, limit=100_000)
    spent = time.process_time()
    bomb = '{"kind":"tuple","spaces":[' * 100_000
    _refused("value_invalid", '{"id":"w","agents":[{"name":"a","observation":' + bomb)
    _refused("value_invalid", '{"id":"w","population":' + '{"kind":"dictionary","agents":[' * 100_000)
    _refused("value_invalid", "[" * 1_000_000)
    assert time.process_time() - spent < 5


def test_a_leaf_with_a_name_too_long_for_a_field_is_refused() -> None:
    deep: Any = Discrete(n=2)
    for _ in range(2):
        deep = Dict(spaces={"x" * 60: deep})
    with raises(ValidationError, "leaf_name_too_long", agent="a", limit=100):
        World(id="w", agents=(Agent(name="a", observation=deep, action=Discrete(n=2)),))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "value_invalid"),
        ("null", "world_without_agents"),
        ("[]", "world_without_agents"),
        ("{", "value_invalid"),
        ('{"id": "w"}', "world_without_agents"),
        ('{"id": "w", "agents": {}}', "value_invalid"),
        ('{"id": "w", "agents": {"": {}}}', "value_invalid"),
        ('{"id": "w", "agents": {"a": 3}}', "value_invalid"),
        ('{"id": "w", "agents": 3}', "world_agents_unreadable"),
        ('{"id": "w", "agents": "a"}', "world_agents_unreadable"),
        ('{"id": "w", "agents": null}', "world_agents_unreadable"),
        ('{"id": "w", "agents": {"a": {"name": "b"}}}', "world_agent_named_twice"),
        ('{"id": "w", "agents": {"a": {"name": null}}}', "world_agent_named_twice"),
        ("\ufeff", "value_invalid"),
        ('"w"', "world_without_agents"),
    ],
)
def test_what_is_no_world_is_refused_with_one_sentence(text: str, kind: str) -> None:
    _refused(kind, text)
    _refused("value_invalid", b"\xff\xfe" + text.encode())


@pytest.mark.parametrize("named", [{}, {"name": "hare"}])
def test_agents_by_their_names_are_those_of_a_list(named: dict[str, str]) -> None:
    hare: dict[str, Any] = {"observation": {"kind": "discrete", "n": 3}, "action": {"kind": "discrete", "n": 2}}
    fox = {**hare, "action_mask": True}
    listed = {"id": "w", "agents": [{"name": "hare", **hare}, {"name": "fox", **fox}]}
    world = World.model_validate({"id": "w", "agents": {"hare": {**hare, **named}, "fox": fox}})
    assert [agent.name for agent in world.agents] == ["hare", "fox"]
    assert world == World.model_validate(listed) == parse_world(json.dumps(listed))
    assert world == parse_world(world.model_dump_json())


def test_leaves_are_named_by_role_and_place_and_ordered() -> None:
    agent = Agent(name="a", observation=CRITIC, action=Action(space=BODY, atomic=False), action_mask=True)
    told = Tuple(spaces=(Discrete(n=2), Discrete(n=3)))
    world = _world(agent, common=Dict(spaces={"clock": Box(shape=()), "told": told}))
    assert [(leaf.name, leaf.owner, leaf.evaluation_only) for leaf in world.places[0].leaves] == [
        ("common.clock", "", False),
        ("common.told.0", "", False),
        ("common.told.1", "", False),
        ("observation.eye", "a", False),
        ("observation.truth.map", "a", True),
        ("action_mask.move", "a", False),
        ("action.look", "a", False),
        ("action.move", "a", False),
    ]
    mask = world.places[0].leaves[5]
    assert (mask.space, mask.path) == (Box(shape=(4,), dtype="bool"), ("move",))
    plain = World(id="w", agents=(_agent("a"),))
    assert [leaf.name for leaf in plain.places[0].leaves] == ["observation", "action"]


def test_a_node_that_says_no_more_than_its_space_is_that_space() -> None:
    untagged = Observation(components={"eye": Component(space=Box(shape=(4,)))})
    agent = Agent(name="a", observation=untagged, action=Action(space=BODY))
    assert agent.observation == Dict(spaces={"eye": Box(shape=(4,))})
    assert agent.action == BODY


def test_a_mask_covers_the_choices_of_each_leaf_and_needs_some() -> None:
    agent = Agent(name="a", observation=Discrete(n=2), action=MultiDiscrete(nvec=(2, 3)), action_mask=True)
    leaves = World(id="w", agents=(agent,)).places[0].leaves
    assert [(leaf.name, leaf.space.shape) for leaf in leaves if leaf.role == "action_mask"] == [("action_mask", (5,))]
    with raises(ValidationError, "action_mask_not_possible", agent="a"):
        Agent(name="a", observation=Discrete(n=2), action=Box(shape=(2,)), action_mask=True)
    with raises(ValidationError, "action_mask_not_possible", agent="a"):
        Agent(name="a", observation=Discrete(n=2), action=Discrete(n=2**40), action_mask=True)


def test_evaluation_only_components_reach_learners_and_no_deployed_policy_I2() -> None:
    agent = Agent(name="a", observation=CRITIC, action=Discrete(n=2))
    told = Observation(components={"score": Component(space=Discrete(n=9), evaluation_only=True)})
    herd = ArrayPopulation(name="herd", template=agent, capacity=2)
    world = _world(DictPopulation(name="team", agents=(agent,), common=told), herd, common=CRITIC)
    deployed = world.deployed()
    seen = {place.name: [leaf.name for leaf in place.leaves] for place in deployed.places}
    assert seen == {name: ["common.eye", "observation.eye", "action"] for name in ("team.a", "herd.a")}
    assert not any(leaf.evaluation_only for place in deployed.places for leaf in place.leaves)
    learners = [leaf.name for leaf in world.place("team.a").leaves if leaf.evaluation_only]
    assert learners == ["common.truth.map", "common.score", "observation.truth.map"]
    assert deployed.deployed() == deployed == parse_world(deployed.model_dump_json())


def test_a_deployed_policy_refuses_what_is_evaluation_only_I2() -> None:
    world = World(id="w", agents=(Agent(name="a", observation=CRITIC, action=Discrete(n=2)),))
    eye, truth = np.zeros(4, np.float32), {"map": np.zeros(9, np.float32)}
    assert list(world.agent("a").see({"eye": eye, "truth": truth})) == ["observation.eye", "observation.truth.map"]
    with raises(
        EnvironmentFault, "component_missing", field="a: observation", component="truth", choices=["eye", "truth"]
    ):
        world.agent("a").see({"eye": eye})
    blind = world.deployed().agent("a")
    assert list(blind.see({"eye": eye})) == ["observation.eye"]
    with raises(EnvironmentFault, "component_not_in_space", field="a: observation", component="truth"):
        blind.see({"eye": eye, "truth": truth})


def test_an_agent_that_would_see_nothing_once_deployed_is_refused_I2() -> None:
    only = Observation(components={"truth": Component(space=Box(shape=(9,)), evaluation_only=True)})
    agent = Agent(name="a", observation=only, action=Discrete(n=2))
    with raises(ValidationError, "agent_sees_nothing", agent="a"):
        World(id="w", agents=(agent,))
    world = _world(agent, common=Discrete(n=2))
    assert [leaf.name for leaf in world.deployed().places[0].leaves] == ["common", "action"]


def test_only_an_action_that_is_not_atomic_may_come_in_parts_I3() -> None:
    parts = Agent(name="a", observation=Discrete(n=2), action=Action(space=BODY, atomic=False))
    whole = Agent(name="b", observation=Discrete(n=2), action=BODY)
    look = np.zeros(2, np.float32)
    assert list(parts.take({"look": look, "move": 3})) == ["action.look", "action.move"]
    assert {name: int(array) for name, array in parts.take({"move": 3}).items()} == {"action.move": 3}
    assert list(whole.take({"look": look, "move": 3})) == ["action.look", "action.move"]
    with raises(EnvironmentFault, "atomic_action_incomplete", agent="b", fields="look"):
        whole.take({"move": 3})
    with raises(EnvironmentFault, "action_is_empty", agent="a", choices=["look", "move"]):
        parts.take({})
    with raises(EnvironmentFault, "component_not_in_space", field="w, a: action", component="jump"):
        parts.take({"move": 3, "jump": 1}, "w, a")
    with raises(EnvironmentFault, "element_outside_bounds", field="a: action.move", low=0, high=3, value=4):
        parts.take({"move": 4})
    assert parse_world(World(id="w", agents=(parts,)).model_dump_json()).agent("a").action.atomic is False


def test_only_a_dict_can_be_taken_apart_I3() -> None:
    with raises(ValidationError, "partial_action_not_a_dict", value="discrete"):
        Action(space=Discrete(n=2), atomic=False)
    with raises(ValidationError, "agent_action_empty", agent="a"):
        World(id="w", agents=(Agent(name="a", observation=Discrete(n=2), action=Dict(spaces={})),))


def test_an_array_population_has_a_template_and_room_for_those_that_come_and_go_I5() -> None:
    herd = ArrayPopulation(name="herd", template=_agent("sheep"), capacity=3)
    world = _world(herd, _agent("dog"))
    sheep, dog = world.places
    assert (sheep.capacity, sheep.slots) == (3, ("herd.sheep.0", "herd.sheep.1", "herd.sheep.2"))
    assert (dog.capacity, dog.slots) == (None, ("dog",))
    alone = World(id="w", population=herd)
    assert alone.places[0].slots == ("sheep.0", "sheep.1", "sheep.2")
    assert parse_world(alone.model_dump_json()) == alone


def test_a_common_observation_is_delivered_once_for_all_who_see_it_I5() -> None:
    squad = DictPopulation(name="squad", agents=(_agent("a"), _agent("b")), common=Dict(spaces={"plan": Discrete(n=2)}))
    herd = ArrayPopulation(name="herd", template=_agent("sheep"), capacity=2720)
    world = _world(squad, herd, _agent("c"), common=Dict(spaces={"map": Box(shape=(9, 9))}))
    assert [(leaf.name, leaf.owner, leaf.common) for leaf in world.common] == [
        ("common.map", "", True),
        ("common.plan", "squad", True),
    ]
    seen = {place.name: [leaf.name for leaf in place.leaves if leaf.common] for place in world.places}
    assert seen == {
        "squad.a": ["common.map", "common.plan"],
        "squad.b": ["common.map", "common.plan"],
        "herd.sheep": ["common.map"],
        "c": ["common.map"],
    }
    with raises(ValidationError, "leaf_name_ambiguous", agent="squad.a", field="common.plan"):
        _world(squad, common=Dict(spaces={"plan": Discrete(n=2)}))
