"""Environments of any space of fixed size through the adapters: what they show is what they showed, what they are given
is an action of their own space."""

from __future__ import annotations

from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.spaces import Agent, Box, Discrete, Place, Tuple, World, elements, unflatten
from protocol.spaces.drawing import first_legal
from protocol.spaces.gymnasium import to_gymnasium
from tests.protocol.spaces.spaces_strategies import SLOW, spaces
from tests.workers.environments.worlds import gridworld
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.dm_env_adapter import DmEnv
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.sorrel_adapter import SorrelEnvironment
from workers.environments.base import AgentTimeStep, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment


class Echo(gymnasium.Env):
    """Shows samples of its observation space and keeps them, and the actions that it is given; episodes of 3 steps."""

    def __init__(self, observation: Any, action: Any, *, cut: bool = True) -> None:
        self.observation_space, self.action_space, self.cut = to_gymnasium(observation), to_gymnasium(action), cut
        self.shown: list[Any] = []
        self.given: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 3
        return self._show(), {}

    def _show(self) -> Any:
        self.shown.append(self.observation_space.sample())
        return self.shown[-1]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), (self.action_space, action)
        self.given.append(action)
        self.left -= 1
        return self._show(), 1.0, False, not self.left and self.cut, {}


def nested(place: Any, rows: Any, row: int, role: str = "observation") -> Any:
    """The value of a space that is in a row."""
    record = place.observed if role == "observation" else place.acted
    space = place.agent.observation if role == "observation" else place.agent.action
    return unflatten(space, {leaf.name: part[row] for leaf, part in record.parts(rows)}, role)


def same(one: Any, other: Any) -> bool:
    """Equal but for digits that float32 does not hold."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(part, other[key]) for key, part in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str):
        return bool(one == other)
    return bool(np.array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32)))


def usable(space: Any, role: str = "observation") -> bool:
    """Has it a leaf?"""
    return any(True for _ in elements(space, role))


def full(space: Any) -> bool:
    """Is no Dict or Tuple in it empty?"""
    parts = getattr(space, "spaces", None)
    if parts is None:
        return True
    return bool(parts) and all(map(full, parts.values() if isinstance(parts, dict) else parts))


SPACES = spaces().filter(usable)
FULL = SPACES.filter(full)
"""Gymnasium's vector form steps nothing with an empty Dict or Tuple in its actions."""


def _shows_the_games(place: Place, present: AgentTimeStep, games: list[Echo], ended: bool) -> None:
    """What came is what each game showed last, and where an episode just ended also what it showed before."""
    for i, game in enumerate(games):
        assert same(nested(place, present.observation, i), game.shown[-1])
        if ended:
            assert present.final_observation is not None
            assert same(nested(place, present.final_observation, i), game.shown[-2])


@settings(SLOW, max_examples=40)
@given(observation=SPACES, action=SPACES, seed=st.integers(0, 2**20))
def test_any_spaces_of_gymnasium_go_both_ways_I1_I3(observation: Any, action: Any, seed: int) -> None:
    """I1 I3: also the last observations of episodes that were cut."""
    games: list[Echo] = []

    def make_one() -> Echo:
        games.append(Echo(observation, action))
        return games[-1]

    environment = CheckedEnvironment(GymnasiumEnvironment("echo", make_one, 2))
    place = environment.world.places[0]
    player = random_player(place, np.random.default_rng(seed))
    turn = environment.reset(seed)
    for step in range(1, 8):
        (present,) = turn.present
        _shows_the_games(place, present, games, step in (4, 7))
        actions = player(present)
        turn = environment.step([actions])
        for i, game in enumerate(games):
            assert same(nested(place, actions, i, "action"), game.given[-1])


@settings(SLOW, max_examples=25)
@given(observation=SPACES, action=FULL, seed=st.integers(0, 2**20), mode=st.sampled_from(list(AutoresetMode)))
def test_any_spaces_go_through_gymnasiums_vector_form(observation: Any, action: Any, seed: int, mode: Any) -> None:
    """I1: in each way to restart."""
    games = [Echo(observation, action) for _ in range(2)]
    vector = SyncVectorEnv([lambda game=game: game for game in games], autoreset_mode=mode)  # type: ignore[misc]
    environment = CheckedEnvironment(GymnasiumVector("echo", vector))
    place = environment.world.places[0]
    player = random_player(place, np.random.default_rng(seed))
    turn = environment.reset(seed)
    for step in range(1, 8):
        (present,) = turn.present
        _shows_the_games(place, present, games, step in (4, 7))
        actions = player(present)
        turn = environment.step([actions])
        if mode != AutoresetMode.NEXT_STEP:
            for i, game in enumerate(games):
                assert same(nested(place, actions, i, "action"), game.given[-1])


def test_an_action_has_the_dtype_of_its_space_and_stays_within_bounds_that_float32_rounds() -> None:
    """I1: 0.1 and 0.7 are no numbers of float32."""
    wide = Tuple(spaces=(Box(shape=(2,), dtype="float64", low=0.1, high=(0.7, None)), Discrete(n=2, start=3)))
    game = Echo(Box(shape=(1,)), wide)
    environment = CheckedEnvironment(GymnasiumEnvironment("echo", lambda: game, 1))
    place = environment.world.places[0]
    environment.reset(0)
    rows = first_legal(place.acted, 1)
    assert rows["0"].dtype == np.float32
    for bound in (0.1, 0.7):
        rows["0"] = bound
        environment.step([rows])
        numbers, choice = game.given[-1]
        assert (numbers.dtype, type(choice)) == (np.float64, int)
        assert 0.1 <= numbers[0] <= 0.7


class Arms(dm_env.Environment):
    """Two arms, each with a box and a choice, and what they did."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def observation_spec(self) -> Any:
        return {"joints": (specs.Array((2,), np.float64), specs.Array((), np.bool_)), "grip": specs.DiscreteArray(3)}

    def action_spec(self) -> Any:
        return [specs.BoundedArray((2,), np.float64, -0.1, 0.1), {"grip": specs.DiscreteArray(3)}]

    def look(self) -> Any:
        return {"joints": (np.full(2, len(self.taken), np.float64), np.array(True)), "grip": len(self.taken) % 3}

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self.look())

    def step(self, action: Any) -> dm_env.TimeStep:
        self.action_spec()[0].validate(action[0])
        self.taken.append(action)
        return dm_env.transition(1.0, self.look())


def test_nested_specs_of_dm_env_go_both_ways() -> None:
    arms = Arms()
    environment = CheckedEnvironment(GymnasiumEnvironment("arms", lambda: DmEnv("arms", arms), 1))
    place = environment.world.places[0]
    environment.reset(0)
    rows = first_legal(place.acted, 1)
    rows["0"], rows["1.grip"] = 0.1, 2
    (present,) = environment.step([rows]).present
    assert same(nested(place, present.observation, 0), arms.look())
    assert arms.taken[0][1] == {"grip": 2}


def test_a_gridworld_may_show_a_dictionary() -> None:
    def dictionaries() -> Any:
        env: Any = gridworld.make()
        for agent in env.agents:
            agent.pov = lambda world, inner=agent.pov: {"view": inner(world), "time": (np.float64(env.turn),)}
        return env

    environment = CheckedEnvironment(SorrelEnvironment("grid", dictionaries, 2))
    (present,) = environment.reset(0).present
    assert present.observation["view"].shape == (2, 10)
    assert present.observation["time.0"].tolist() == [1, 1]
    for _ in range(9):
        (present,) = environment.step([np.zeros(2, np.int64)]).present


@settings(SLOW, max_examples=50)
@given(action=SPACES, seed=st.integers(0, 2**20))
def test_what_a_random_player_does_is_in_its_space(action: Any, seed: int) -> None:
    place = World(id="nothing", agents=(Agent(name="a", observation=Discrete(n=1), action=action),)).places[0]
    space = to_gymnasium(action)
    present: Any = type("Present", (), {"observation": np.zeros(5), "action_mask": None})
    for rows in (random_player(place, np.random.default_rng(seed))(present), first_legal(place.acted, 5)):
        for row in range(5):
            value = unflatten(action, {leaf.name: part[row] for leaf, part in place.acted.parts(rows)}, "action")
            assert _inside(space, value), value


def _inside(space: Any, value: Any) -> bool:
    """As Gymnasium says, but for numpy's numbers instead of arrays without axes."""
    if isinstance(space, gymnasium.spaces.Dict):
        return all(_inside(part, value[key]) for key, part in space.items())
    if isinstance(space, gymnasium.spaces.Tuple):
        return all(map(_inside, space, value))
    return bool(space.contains(np.asarray(value) if isinstance(space, gymnasium.spaces.Box) else value))
