"""Teams: agents that act as one see, do and earn together what they did apart; what cannot be a team is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig, parse_run
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import (
    Agent,
    ArrayPopulation,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    MultiDiscrete,
    Observation,
    Payoff,
    World,
)
from protocol.spaces.drawing import random_rows
from tests.faults import raises
from tests.playing import baselines, play
from tests.workers.environments.worlds.scenes import Scenes
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Episodes, Turn, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import describe, make
from workers.environments.wrappers.team import TeamEnvironment
from workers.environments.wrappers.team_spaces import part_of, team_world
from workers.policies.interface import Interface
from workers.policies.team_layout import members_of

EYES = Observation(
    components={
        "camera": Component(space=Box(shape=(2, 2), dtype="uint8")),
        "truth": Component(space=Box(shape=(3,)), evaluation_only=True),
    }
)
HANDS = Dict(spaces={"legs": MultiDiscrete(nvec=(2, 3)), "move": Discrete(n=4, start=2)})
WOLVES = DictPopulation(
    name="wolves",
    agents=(
        Agent(name="grey", observation=EYES, action=Discrete(n=3), action_mask=True),
        Agent(name="black", observation=Box(shape=(2,)), action=HANDS),
    ),
)
SHEEP = Agent(name="sheep", observation=Box(shape=(5,)), action=Discrete(n=2))
HERD = ArrayPopulation(name="herd", template=SHEEP.model_copy(update={"name": "cow"}), capacity=2)
MEADOW = World(
    id="meadow", population=DictPopulation(agents=(SHEEP, WOLVES, HERD), common=Box(shape=(2,))), episode_steps=5
)


def test_a_team_is_one_agent_and_all_others_stay_where_they_are() -> None:
    world, (team,) = team_world(MEADOW, {"pack": ("wolves.grey", "wolves.black")})
    assert [agent.name for agent in world.agents] == ["pack", "sheep", "herd.cow"]
    assert [MEADOW.agents[i].name for i in team.members] == ["wolves.black", "wolves.grey"]
    place = world.places[0]
    assert [leaf.name for leaf in place.leaves] == [
        "common",
        "observation.evaluation_only.wolves-grey.truth",
        "observation.wolves-black",
        "observation.wolves-grey.camera",
        "action_mask.wolves-black.legs",
        "action_mask.wolves-black.move",
        "action_mask.wolves-grey",
        "action.wolves-black.legs",
        "action.wolves-black.move",
        "action.wolves-grey",
    ]
    assert [leaf.name for leaf in place.leaves if leaf.evaluation_only] == [place.leaves[1].name]
    assert world.places[1:] == tuple(
        one for one in World(id="w", population=world.population).places if one.name != "pack"
    )
    assert (world.episode_steps, world.common) == (5, MEADOW.common)


@settings(max_examples=25, deadline=None)
@given(copies=st.integers(1, 4), mean=st.booleans(), seed=st.integers(0, 999))
def test_a_team_sees_does_and_earns_what_its_members_do(copies: int, mean: bool, seed: int) -> None:
    """Every column, mask, reward, end and true last observation, against the world of the members with the same seed;
    what the team does is done by them."""
    inner, apart = Scenes(MEADOW, copies), Scenes(MEADOW, copies)
    together = CheckedEnvironment(
        TeamEnvironment(inner, {"pack": ("wolves.black", "wolves.grey")}, "mean" if mean else "sum")
    )
    world, chance = together.world, np.random.default_rng(seed)
    turn, expected = together.reset(seed), apart.reset(seed)
    for _ in range(12):
        compare(world.place("pack").observed.dtype.names or (), turn, expected, 0.5 if mean else 1.0)
        actions = [random_rows(place.acted, copies * place.many, chance) for place in world.places]
        obey(actions[0], turn.present[0].action_mask)
        turn = together.step(actions)
        given = [actions[1], actions[0]["wolves-grey"], None, actions[2]]
        for got, wanted in zip(inner.given[-1], given, strict=True):
            assert wanted is None or np.array_equal(got, wanted)
        black = inner.given[-1][2]
        for name in ("legs", "move"):
            np.testing.assert_array_equal(black[name], actions[0][f"wolves-black.{name}"])
        expected = apart.step(inner.given[-1])
    together.close()


def compare(fields: Sequence[str], turn: Turn, expected: Turn, worth: float) -> None:
    """The team's turn against its members'."""
    pack, sheep, cows = turn.present
    assert [one.agent for one in turn.present] == [0, 1, 2]
    theirs = {MEADOW.agents[one.agent].name: one for one in expected.present}
    for one, name in ((sheep, "sheep"), (cows, "herd.cow")):
        np.testing.assert_array_equal(one.observation, theirs[name].observation)
        np.testing.assert_array_equal(one.reward, theirs[name].reward)
    grey, black = theirs["wolves.grey"], theirs["wolves.black"]
    np.testing.assert_allclose(pack.reward, worth * (grey.reward + black.reward), rtol=1e-6)
    for flag in ("terminated", "truncated", "final_index"):
        np.testing.assert_array_equal(getattr(pack, flag), getattr(grey, flag))
    assert sorted(fields) == ["evaluation_only.wolves-grey.truth", "wolves-black", "wolves-grey.camera"]
    same_rows(pack.observation, grey.observation, black.observation)
    if len(pack.final_index):
        assert pack.final_observation is not None
        assert grey.final_observation is not None
        assert black.final_observation is not None
        same_rows(pack.final_observation, grey.final_observation, black.final_observation)
        np.testing.assert_array_equal(pack.final_common, grey.final_common)
    assert pack.action_mask is not None
    np.testing.assert_array_equal(pack.action_mask["wolves-grey"], grey.action_mask)
    assert pack.action_mask["wolves-black.legs"].all()
    np.testing.assert_array_equal(turn.common, expected.common)


def same_rows(pack: NDArray[Any], grey: NDArray[Any], black: NDArray[Any]) -> None:
    np.testing.assert_array_equal(pack["evaluation_only.wolves-grey.truth"], grey["truth"])
    np.testing.assert_array_equal(pack["wolves-grey.camera"], grey["camera"])
    np.testing.assert_array_equal(pack["wolves-black"], black)


def obey(actions: NDArray[Any], mask: NDArray[Any] | None) -> None:
    """The grey wolf does something legal."""
    assert mask is not None
    actions["wolves-grey"] = mask["wolves-grey"].argmax(1)


class Apart(Environment):
    """Two agents; in turn `when` the second one's presence differs in the way `how`."""

    def __init__(self, how: str, when: int, copies: int = 2) -> None:
        agents = tuple(Agent(name=name, observation=Box(shape=(1,)), action=Discrete(n=2)) for name in "ab")
        self.world, self.copies = World(id="pair", agents=agents), copies
        self._how, self._when, self._t = how, when, 0

    def reset(self, seed: int) -> Turn:
        self._t = 0
        return self._turn()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        self._t += 1
        return self._turn()

    def _turn(self) -> Turn:
        n, told, outcomes = self.copies, [], []
        for agent in range(2):
            odd = agent == 1 and self._t == self._when
            where = np.arange(n)[1:] if odd and self._how == "elsewhere" else np.arange(n)
            ended = np.full(len(where), self._how == "both" and self._t == self._when)
            one = AgentTimeStep(
                agent,
                np.zeros((len(where), 1), np.float32),
                np.ones(len(where), np.float32),
                ended & (agent == 0) | (odd and self._how == "ended"),
                ended & (agent == 1),
                where if self._how == "elsewhere" else None,
            )
            if one.truncated.any():
                one.final_index, one.final_observation = where, one.observation
            if odd and self._how in ("gone", "between"):
                zeros = np.zeros(n, np.bool_)
                outcomes += [AgentOutcome(1, where, one.reward, ~zeros, zeros)] if self._how == "between" else []
            else:
                told.append(one)
        return Turn(tuple(told), n, tuple(outcomes))


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("gone", "teammate_absent"),
        ("elsewhere", "teammate_absent"),
        ("between", "teammate_absent"),
        ("ended", "teammate_ends_apart"),
    ],
)
def test_a_member_that_comes_goes_or_ends_by_itself_ends_the_run(how: str, kind: str) -> None:
    together = TeamEnvironment(Apart(how, 2), {"two": "all"}, "sum")
    facts = {"environment": "pair", "agent": "b", "team": "two", "other": "a", "key": "environment.teams"}
    with raises(EnvironmentFault, kind, **facts):
        together.reset(0)
        for _ in range(2):
            together.step([np.zeros(2, together.world.places[0].acted.dtype)])


def test_where_one_member_terminated_and_another_was_cut_the_team_terminated() -> None:
    together = CheckedEnvironment(TeamEnvironment(Apart("both", 1), {"two": "all"}, "sum"))
    together.reset(0)
    (told,) = together.step([np.zeros(2, together.world.places[0].acted.dtype)]).present
    assert told.terminated.all()
    assert not told.truncated.any()
    assert not len(told.final_index)


def tree(payoff: Payoff, *members: Any) -> World:
    return World(id="w", population=DictPopulation(agents=members, payoff=payoff))


PACK = WOLVES.model_copy(update={"payoff": "cooperative"})
ONE, TWO, THREE = (Agent(name=n, observation=Box(shape=(1,)), action=Discrete(n=2)) for n in ("one", "two", "three"))


@pytest.mark.parametrize(
    ("world", "teams", "kind", "facts"),
    [
        (
            tree("general", ONE, TWO),
            {"t": ("one", "four")},
            "team_names_unknown_agent",
            {"agent": "four", "environment": "w", "choices": ["one", "two"]},
        ),
        (tree("general", ONE, TWO), {"t": ("one", "one")}, "team_of_one_member", {}),
        (tree("general", ONE), {"t": "all"}, "team_of_one_member", {}),
        (tree("general", ONE, HERD), {"t": "all"}, "team_member_varies_in_number", {"agent": "herd.cow"}),
        (tree("zero_sum", ONE, TWO), {"t": "all"}, "team_members_are_opponents", {}),
        (tree("zero_sum", PACK, ONE), {"t": ("one", "wolves.grey")}, "team_members_are_opponents", {}),
        (
            tree("general", ONE, TWO, THREE),
            {"t": ("one", "two"), "u": ("two", "three")},
            "agent_in_two_teams",
            {"agent": "two", "other": "u"},
        ),
        (tree("general", ONE, TWO, THREE), {"three": ("one", "two")}, "team_named_like_agent", {}),
    ],
)
def test_what_cannot_be_a_team_is_refused_with_its_remedy(world: World, teams: Any, kind: str, facts: Any) -> None:
    inner, team = Scenes(world), next(iter(teams))
    key = "environment.teams" if kind == "agent_in_two_teams" else f"environment.teams.{team}"
    with raises(ConfigurationError, kind, team=team, key=key, **facts):
        TeamEnvironment(inner, teams, "sum")


def test_teams_that_play_against_each_other_are_made_of_those_who_play_together() -> None:
    other = PACK.model_copy(update={"name": "bears"})
    world, teams = team_world(
        tree("zero_sum", PACK, other),
        {"w": ("wolves.grey", "wolves.black"), "b": ("bears.grey", "bears.black")},
    )
    assert [agent.name for agent in world.agents] == ["w", "b"]
    assert [team.members for team in teams] == [(1, 0), (3, 2)]
    assert part_of(tree("general", WOLVES).places[0].observed.leaves[1], "wolves.grey").startswith("evaluation_only.")


def test_a_cooperative_population_is_held_to_its_payoff_in_a_team_as_well_I4() -> None:
    together = TeamEnvironment(Scenes(tree("general", PACK)), {"t": "all"}, "sum")
    (one,) = together.reset(0).present
    actions = np.zeros(1, together.world.places[0].acted.dtype)
    actions["wolves-black.move"] = 2
    obey(actions, one.action_mask)
    with raises(
        EnvironmentFault,
        "payoff_broken",
        environment="w",
        population="wolves",
        turn=1,
        payoff="cooperative",
    ):
        together.step([actions])


def test_members_that_take_turns_are_refused_before_anything_starts() -> None:
    hunt = {"id": "treasure_hunt", "teams": {"hunters": "all"}}
    with raises(EnvironmentFault, "teammate_absent", agent="agent_1", team="hunters", key="environment.teams"):
        describe(EnvironmentConfig.model_validate(hunt))
    world = describe(EnvironmentConfig.model_validate({**hunt, "turn_mode": "simultaneous"}))
    assert [agent.name for agent in world.agents] == ["hunters"]


def test_what_others_see_makes_a_team_no_other_team() -> None:
    """Members are told from what the team sees and does itself, not from what only learners see of the others."""
    keys = {"id": "tag", "turn_mode": "simultaneous", "teams": {"t": ["agent_0", "agent_1"]}, "central_state": "joint"}
    world = describe(EnvironmentConfig.model_validate(keys))
    assert any(leaf.evaluation_only for leaf in world.places[0].observed.leaves)
    assert [member.name for member in members_of(Interface.at(world, world.places[0]))] == ["agent_0", "agent_1"]


def test_simulators_are_in_no_team() -> None:
    keys = {"id": "external", "settings": {"world": "rendezvous"}, "teams": {"t": "all"}}
    with raises(ConfigurationError, "simulators_with_teams", key="environment.teams"):
        describe(EnvironmentConfig.model_validate(keys))


def test_keys_of_teams_are_checked() -> None:
    run = parse_run({"environment": {"teams": {"t": "all", "u": ["a", "b"]}, "team_reward": "mean"}})
    assert run.environment.teams == {"t": "all", "u": ("a", "b")}
    for wrong, key in (
        ({"teams": {"t": ["a"]}}, "environment.teams.t"),
        ({"teams": {"t": "both"}}, "environment.teams.t"),
        ({"teams": {"a b": "all"}}, "environment.teams.a b"),
        ({"team_reward": "max"}, "environment.team_reward"),
    ):
        with raises(ConfigurationError, "value_invalid") as caught:
            parse_run({"environment": wrong})
        assert key in str(caught.value)


def test_a_scripted_player_and_chance_play_for_all_members() -> None:
    """The climbing game pays both players 11 a turn: a team earns the sum or the mean."""
    game = {"id": "matrix_game", "copies": 4, "teams": {"t": "all"}}
    for reward, best in (("sum", 550.0), ("mean", 275.0)):
        found = baselines(EnvironmentConfig.model_validate({**game, "team_reward": reward}), 4, 0)["t"]
        assert (found["scripted"], found["scripted_stderr"]) == (best, 0)
        assert found["random"] < 0


def test_processes_step_teams_as_the_actor_itself_does() -> None:
    """One process draws the same episodes as none."""
    keys = {"id": "rendezvous", "copies": 4, "teams": {"t": ["agent_0", "agent_2"]}, "settings": {"turns": 3}}
    earned = []
    for processes in (0, 1):
        environment = make(EnvironmentConfig.model_validate({**keys, "processes": processes}))
        places = environment.world.places
        players = {place.name: random_player(place, np.random.default_rng(3)) for place in places}
        earned.append(play(environment, players, 8, seed=5))
        environment.close()
    assert earned[0] == earned[1]
    assert set(earned[0]) == {"t", "agent_1"}


class Counted(Scenes):
    """It tells of episodes, as a collection does."""

    def take_episodes(self) -> Episodes:
        return {("easy", 0): (2, 8.0), ("easy", 1): (2, 4.0), ("hard", 1): (1, 5.0), ("hard", 0): (1, 1.0)}


def test_episodes_of_a_collection_are_counted_once_for_a_team() -> None:
    world = tree("general", ONE, TWO)
    assert TeamEnvironment(Counted(world), {"t": "all"}, "sum").take_episodes() == {
        ("easy", 0): (2, 12.0),
        ("hard", 0): (1, 6.0),
    }
    assert TeamEnvironment(Counted(world), {"t": "all"}, "mean").take_episodes()["easy", 0] == (2, 6.0)


def test_a_team_plays_a_collection() -> None:
    member = {"id": "rendezvous", "settings": {"turns": 3}}
    config = EnvironmentConfig.model_validate(
        {"copies": 2, "members": {"x": member, "y": member}, "prior": {"x": 1.0, "y": 2.0}, "teams": {"t": "all"}}
    )
    environment = CheckedEnvironment(make(config))
    (place,) = environment.world.places
    play(environment, {"t": random_player(place, np.random.default_rng(0))}, 8, seed=0)
    assert set(environment.take_episodes()) <= {("x", 0), ("y", 0)}
    environment.close()
