"""Unity ML-Agents' low-level API. `mlagents_envs` cannot be installed beside this Python (it refuses 3.11), so these
tests hold for an object that speaks the API as it is documented; none of them has seen a Unity executable."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from tests.faults import raises
from tests.workers.environments.adapters.unity import ActionSpec, Entry, Unity
from workers.environments.adapters.mlagents_adapter import MlAgentsEnvironment, is_mlagents
from workers.environments.base import AgentOutcome, AgentTimeStep, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make

BOTH = {"Walker?team=0": ActionSpec(2, (3, 2)), "Hunter?team=1": ActionSpec(0, (4,))}
SHAPES: dict[str, list[tuple[int, ...]]] = {"one": [(3,)], "two": [(2,), (2, 2, 1)]}


def actions_of(place: Any, row: Any) -> tuple[float, ...]:
    """Numbers, then choices."""
    if not place.acted.nested:
        return tuple(np.ravel(row).tolist())
    return (*row["continuous"].tolist(), *np.ravel(row["discrete"]).tolist())


def first_number(rows: Any, k: int) -> float:
    leaf = rows if rows.dtype.names is None else rows["0"]
    return float(leaf[k].flat[0])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    shapes=st.sampled_from(sorted(SHAPES)),
    one=st.sampled_from([None, *BOTH]),
    turns=st.integers(2, 60),
)
def test_every_reward_and_end_lies_in_the_row_of_its_action_I5_K5(
    seed: int, shapes: str, one: str | None, turns: int
) -> None:
    """I5 K5: agents that ask at times of their own, end, come and take freed places; group rewards; masks."""
    specs = BOTH if one is None else {one: BOTH[one]}
    games: list[Unity] = []

    def make_one() -> Unity:
        games.append(Unity(seed + len(games), specs, SHAPES[shapes]))
        return games[-1]

    environment = CheckedEnvironment(MlAgentsEnvironment("unity", make_one, 2))
    places = environment.world.places
    player = [random_player(place, np.random.default_rng(seed)) for place in places]
    rows: dict[float, Entry] = {}
    open_: dict[tuple[int, int], float] = {}
    turn = environment.reset(0)
    for _ in range(turns):
        news: tuple[AgentOutcome | AgentTimeStep, ...] = (*turn.outcomes, *turn.present)
        for told in news:
            every = np.arange(len(told.reward)) if told.copies is None else told.copies
            for k, row in enumerate(every.tolist()):
                seen = open_.pop((told.agent, row), None)
                if seen is None:
                    assert isinstance(told, AgentTimeStep)
                    assert not any((told.reward[k], told.terminated[k], told.truncated[k]))
                    continue
                entry = rows[seen]
                entry.reward += float(told.reward[k])
                entry.how = "terminated" if told.terminated[k] else "truncated" if told.truncated[k] else ""
                if told.truncated[k]:
                    entry.final = first_number(told.final_observation, told.final_index.tolist().index(k))
        actions = []
        for present in turn.present:
            actions.append(player[present.agent](present))
            every = np.arange(len(present.reward)) if present.copies is None else present.copies
            for k, row in enumerate(every.tolist()):
                seen = open_[present.agent, row] = first_number(present.observation, k)
                rows[seen] = Entry(actions_of(places[present.agent], actions[-1][k]))
        turn = environment.step(actions)
    still = set(open_.values())
    closed = [(seen, entry) for seen, entry in rows.items() if seen not in still]
    books = [entry for game in games for entry in game.books.items()]
    assert len(rows) == len(books)
    assert all(entry in books for entry in closed)
    environment.close()
    assert all(game.closed for game in games)


def made() -> Unity:
    return Unity(0, BOTH, SHAPES["one"])


def test_it_is_found_by_its_function() -> None:
    environment = make(EnvironmentConfig(id=f"{__name__}:made", copies=2))
    assert isinstance(environment, MlAgentsEnvironment)
    assert len(environment.reset(0).present) > 0
    environment.close()


def test_spaces_are_those_of_the_behaviours() -> None:
    game = Unity(0, BOTH, SHAPES["two"])
    assert is_mlagents(game)
    world = MlAgentsEnvironment("unity", lambda: game, 1).world
    walker, hunter = world.places
    assert (walker.name, hunter.name) == ("Walker-team-0.agent", "Hunter-team-1.agent")
    assert walker.capacity == 3
    assert walker.agent.observation == Tuple(spaces=(Box(shape=(2,)), Box(shape=(2, 2, 1))))
    numbers = Box(shape=(2,), low=-1, high=1)
    assert walker.agent.action == Dict(spaces={"continuous": numbers, "discrete": MultiDiscrete(nvec=(3, 2))})
    assert hunter.agent.action == Discrete(n=4)
    assert walker.agent.action_mask


class Wrong(Unity):
    """Does one wrong thing."""

    def __init__(self, wrong: str) -> None:
        super().__init__(0, {"Walker": BOTH["Walker?team=0"]}, [(3,)])
        self.wrong = wrong
        if wrong == "crowd":
            self.most_agents = {"Walker": 2}

    def reset(self) -> None:
        super().reset()
        if self.wrong == "nothing":
            self.behavior_specs = {}

    def step(self) -> None:
        super().step()
        if self.wrong == "late":
            self.behavior_specs = {**self.behavior_specs, "Late": self.behavior_specs["Walker"]}
        if self.wrong == "shape":
            for steps in self._steps["Walker"]:
                steps.obs = [np.zeros((len(steps), 4), np.float32)]


@pytest.mark.parametrize(
    ("wrong", "kind", "facts"),
    [
        (
            "crowd",
            "behavior_agents_exceeded",
            {"where": "unity, agent Walker.agent", "limit": 2, "behavior": "Walker"},
        ),
        ("late", "behavior_appeared_late", {"environment": "unity", "expected": ["Walker"], "value": "Late"}),
        ("shape", "behavior_observation_shapes", {"where": "unity, agent Walker.agent"}),
    ],
)
def test_a_faulty_environment_is_told_in_one_sentence(wrong: str, kind: str, facts: dict[str, Any]) -> None:
    environment = CheckedEnvironment(MlAgentsEnvironment("unity", lambda: Wrong(wrong), 1))
    player = random_player(environment.world.places[0], np.random.default_rng(0))
    turn = environment.reset(0)
    with raises(EnvironmentFault, kind, **facts) as caught:
        for _ in range(50):
            turn = environment.step([player(present) for present in turn.present])
    if wrong == "shape":
        assert re.search(r"\[\(\d, 3\)\].*\[\(\d, 4\)\]", str(caught.value))


def test_what_cannot_be_made_or_stepped_is_refused() -> None:
    with raises(ConfigurationError, "no_behaviors_after_reset", environment="unity"):
        MlAgentsEnvironment("unity", lambda: Wrong("nothing"), 1)
    with raises(EnvironmentFault, "step_before_reset", environment="unity"):
        MlAgentsEnvironment("unity", lambda: Unity(0, BOTH, [(3,)]), 1).step([])
