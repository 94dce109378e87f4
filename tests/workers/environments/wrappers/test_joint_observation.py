"""A joint observation for learners: all that the others saw last, in this episode, whoever is there (I2, X10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Component, Dict, DictPopulation, Discrete, Observation, Tuple, World
from tests.faults import raises
from tests.playing import baselines
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.wrappers.joint_observation import JointObservation
from workers.policies.interface import Interface

E = 3
MAZE = {"height": 7, "width": 7, "turns": 6}


def both(id: str, mode: Any, **settings: Any) -> tuple[Environment, Environment]:
    """A world as it is, and with a joint observation."""
    plain = EnvironmentConfig(id=id, copies=E, turn_mode=mode, settings=settings)
    return make(plain), CheckedEnvironment(make(plain.model_copy(update={"central_state": "joint"})))


def entries(
    present: tuple[AgentTimeStep, ...], outcomes: tuple[AgentOutcome, ...]
) -> tuple[AgentTimeStep | AgentOutcome, ...]:
    """All that a turn tells."""
    return (*present, *outcomes)


@pytest.mark.parametrize(
    ("id", "mode", "settings"),
    [
        ("treasure_hunt", "simultaneous", {**MAZE, "map": True}),
        ("tag", "sequential", {"turns": 5, "agents": 3, "width": 6, "height": 6}),
        ("rendezvous", "simultaneous", {"turns": 4, "desynchronize": True}),
        ("weather", "sequential", {"agents": 3}),
    ],
)
def test_agents_see_and_earn_what_they_did_and_learners_see_the_others_too(id: str, mode: Any, settings: Any) -> None:
    """Against the same world without it: a record of what each agent was shown last, copy by copy."""
    plain, joint = both(id, mode, **settings)
    places, outer = plain.world.places, joint.world.places
    players = [random_player(place, np.random.default_rng(i)) for i, place in enumerate(places)]
    latest: dict[tuple[int, int], NDArray] = {}
    turn, widened = plain.reset(5), joint.reset(5)
    looks = 0
    for _ in range(60):
        for one in entries(turn.present, plain.flush_ends()):
            for row, copy in enumerate(range(E) if one.copies is None else one.copies):
                if one.terminated[row] or one.truncated[row]:
                    latest.pop((one.agent, copy), None)
        for present in turn.present:
            for copy in range(E):
                latest[present.agent, copy] = present.observation[copy].copy()
        for present, wide in zip(turn.present, widened.present, strict=True):
            np.testing.assert_array_equal(wide.reward, present.reward)
            k = present.agent
            for copy in range(E):
                shown = outer[k].parts("observation", wide.observation[copy])
                own = places[k].parts("observation", present.observation[copy])
                assert all(np.array_equal(shown[_outer(name)], part) for name, part in own.items())
                others = [j for j in range(len(places)) if j != k]
                for position, j in enumerate(others):
                    told = latest.get((j, copy), places[j].observed.zeros(1)[0])
                    for name, part in places[j].parts("observation", told).items():
                        field = name.replace("observation", f"observation.central.others.{position}", 1)
                        np.testing.assert_array_equal(shown[field], part)
                        looks += bool(np.any(part))
                    assert shown["observation.central.there"][position] == ((j, copy) in latest)
        chosen = [players[p.agent](p) for p in turn.present]
        turn, widened = plain.step(chosen), joint.step(chosen)
    assert looks > 100


def _outer(name: str) -> str:
    return "observation.own" if name == "observation" else name


@pytest.mark.parametrize("mode", ["sequential", "simultaneous"])
def test_true_last_observations_show_what_the_others_saw_last_too(mode: Any) -> None:
    """In both modes the episodes of all end in one turn; its finals are those of the world itself."""
    plain, joint = both("treasure_hunt", mode, **MAZE)
    rng, found = np.random.default_rng(0), 0
    turn, widened = plain.reset(1), joint.reset(1)
    for _ in range(6 * 2 * 3 + 1):
        told: dict[int, Any] = {}
        for one in entries(turn.present, plain.flush_ends()):
            if len(one.final_index):
                told[one.agent] = one.final_observation
        for wide in entries(widened.present, widened.outcomes):
            if len(wide.final_index):
                assert wide.final_observation is not None
                found += 1
                np.testing.assert_array_equal(wide.final_observation["own"], told[wide.agent])
                np.testing.assert_array_equal(wide.final_observation["central.others.0"], told[1 - wide.agent])
                assert wide.final_observation["central.there"].all()
        chosen = [rng.integers(4, size=E) for _ in turn.present]
        turn, widened = plain.step(chosen), joint.step(chosen)
    assert found >= 4


NOSE = Observation(
    components={
        "nose": Component(space=Discrete(n=3, start=1)),
        "truth": Component(space=Box(shape=(2,)), evaluation_only=True),
    }
)
BAG = Tuple(spaces=(Box(shape=(2,)), Dict(spaces={"x": Discrete(n=2)})))


class Comings(Environment):
    """`rover` is always there; `guest` comes in turn 1 in copy 0, and leaves in turn 3, truncated or terminated."""

    def __init__(self, leaves: str) -> None:
        self.copies, self._leaves = 2, leaves
        agents = (
            Agent(name="rover", observation=NOSE, action=Discrete(n=2)),
            Agent(name="guest", observation=BAG, action=Discrete(n=2)),
        )
        self.world = World(id="comings", population=DictPopulation(agents=agents))

    def reset(self, seed: int) -> Turn:
        self._t = 0
        return self._turn()

    def step(self, actions: Any) -> Turn:
        self._t += 1
        return self._turn()

    def _turn(self) -> Turn:
        rover, guest = (place.observed.zeros(2) for place in self.world.places)
        rover["nose"], rover["truth"] = 1 + self._t % 3, self._t
        guest["0"], guest["1.x"] = self._t, 1
        no, nothing = np.zeros(2, np.bool_), np.zeros(2, np.float32)
        present = [AgentTimeStep(0, rover, nothing, no, no)]
        here = np.array([0])
        if 1 <= self._t < 3:
            present.append(AgentTimeStep(1, guest[:1], nothing[:1], no[:1], no[:1], here))
        gone: tuple[AgentOutcome, ...] = ()
        if self._t == 3:
            cut = self._leaves == "truncated"
            over = np.array([True])
            gone = (AgentOutcome(1, here, nothing[:1], over & (not cut), over & cut),)
            if cut:
                gone[0].final_index, gone[0].final_observation = np.array([0]), guest[:1]
        return Turn(tuple(present), 2, gone)


@pytest.mark.parametrize("leaves", ["truncated", "terminated"])
def test_who_comes_and_goes_is_there_only_meanwhile_and_zeros_else(leaves: str) -> None:
    joint = CheckedEnvironment(JointObservation(Comings(leaves)))
    turn = joint.reset(0)
    for t in range(5):
        rover = turn.present[0].observation
        here = 1 <= t < 3
        assert rover["nose"].tolist() == [1 + t % 3] * 2
        assert rover["central.there"].tolist() == [[here], [0]]
        np.testing.assert_array_equal(rover["central.others.0.0"], [[t * here] * 2, [0, 0]])
        assert rover["central.others.0.1.x"].tolist() == [here, 0]
        for guest in turn.present[1:]:
            assert guest.observation["own.0"].tolist() == [[t, t]]
            assert guest.observation["central.others.0.nose"].tolist() == [1 + t % 3]
            assert guest.observation["central.others.0.truth"].tolist() == [[t, t]], "learners see that of others, too"
        if t == 3:
            (gone,) = turn.outcomes
            assert (gone.final_observation is None) == (leaves == "terminated")
            if gone.final_observation is not None:
                assert gone.final_observation["own.0"].tolist() == [[3, 3]]
                assert gone.final_observation["central.others.0.truth"].tolist() == [[3, 3]], "of the same turn"
        turn = joint.step([np.zeros(len(p.reward), np.int64) for p in turn.present])


def test_no_acting_policy_is_shown_any_of_it_and_its_inputs_keep_their_names_I2() -> None:
    world = JointObservation(Comings("truncated")).world
    first, second = (Interface.at(world, place) for place in world.places)
    assert [part.column for part in first.observation_encoding.parts] == ["observation.nose"]
    assert [part.column for part in second.observation_encoding.parts] == ["observation.own.0", "observation.own.1.x"]
    assert first.privileged is not None
    assert [part.column.removeprefix("observation.") for part in first.privileged.parts] == [
        "central.others.0.0",
        "central.others.0.1.x",
        "central.there",
        "truth",
    ]
    assert world.deployed().places[0].agent == Comings("truncated").world.deployed().places[0].agent


def test_scripted_players_play_on() -> None:
    config = EnvironmentConfig(id="rendezvous", copies=8, settings={"turns": 10})
    for one, other in zip(
        baselines(config, 16, 0).values(),
        baselines(config.model_copy(update={"central_state": "joint"}), 16, 0).values(),
        strict=True,
    ):
        assert one["scripted"] == other["scripted"]


def test_teams_and_members_of_a_collection_are_agents_like_any_others() -> None:
    """A team sees what its members see, and another agent's critic all of that; simulators are on their own."""
    team = EnvironmentConfig.model_validate(
        {"id": "rendezvous", "copies": 2, "teams": {"pair": ["agent_0", "agent_1"]}, "central_state": "joint"}
    )
    environment = CheckedEnvironment(make(team))
    turn = environment.reset(0)
    pair, alone = (present.observation for present in turn.present)
    np.testing.assert_array_equal(alone["central.others.0.agent_1"], pair["agent_1"])
    several = EnvironmentConfig.model_validate(
        {
            "copies": 2,
            "members": {name: {"id": "tag", "settings": {"turns": 3}} for name in "ab"},
            "prior": {"a": 0.5, "b": 0.5},
            "central_state": "joint",
        }
    )
    collection = CheckedEnvironment(make(several))
    turn, rng, begun, met = collection.reset(0), np.random.default_rng(0), 0, 0
    for _ in range(60):
        for present in turn.present:
            there, begins = present.observation["central.there"], present.terminated | present.truncated
            if present.agent == 0:
                assert not there[begins].any(), "who acts first in an episode has met nobody in it"
                begun, met = begun + begins.sum(), met + there[~begins].all(1).sum()
        turn = collection.step([rng.integers(4, size=len(present.reward)) for present in turn.present])
    assert begun > 2
    assert met > 2
    with raises(ConfigurationError, "simulators_with_central_state", value="joint", key="environment.central_state"):
        make(EnvironmentConfig(id="external", settings={"world": "tag"}, central_state="joint"))


@pytest.mark.parametrize(
    ("id", "settings", "kind", "facts"),
    [
        ("memory", {}, "joint_state_of_one_agent", {"agent": "agent_0"}),
        ("synthetic", {"many": 3}, "joint_state_too_large", {"agent": "agent", "limit": 3}),
    ],
)
def test_where_there_are_no_others_by_name_it_is_refused_in_a_sentence(
    id: str, settings: Any, kind: str, facts: Any
) -> None:
    with raises(ConfigurationError, kind, environment=id, key="environment.central_state", **facts):
        make(EnvironmentConfig(id=id, copies=2, settings=settings, central_state="joint"))
