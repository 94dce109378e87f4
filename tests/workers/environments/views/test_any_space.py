"""Worlds of any space, with masks, continuous actions, templates and common observations, as Gymnasium's and
PettingZoo's environments: their own tests pass on them, and what went out comes back as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, seed_test

from protocol.errors import EnvironmentFault
from protocol.spaces import (
    Agent,
    ArrayPopulation,
    Box,
    Dict,
    DictPopulation,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    World,
)
from tests.faults import raises
from tests.protocol.spaces.spaces_strategies import SLOW
from tests.workers.environments.adapters.masked_games import Alone, InTurn, Together
from tests.workers.environments.test_any_space import FULL, SPACES
from tests.workers.environments.worlds.scenes import Scenes
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.base import AgentTimeStep, Environment, Turn, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.views.gymnasium_views import GymnasiumView, VectorView
from workers.environments.views.pettingzoo_views import ParallelView, TurnView

LIMBS: dict[str, Any] = {
    "arm": Box(shape=(2,), low=-9, high=9),
    "grip": Discrete(n=3, start=4),
    "touch": MultiBinary(shape=(2,)),
}
SEEN = Dict(spaces={"eye": Box(shape=(3, 3, 1), dtype="uint8"), "limbs": Dict(spaces=LIMBS)})
"""Without a Tuple or a Text, which PettingZoo's test takes for arrays."""
DONE = Dict(
    spaces={"go": Discrete(n=4), "hold": MultiDiscrete(nvec=(2, 3)), "push": Box(shape=(2,), low=-1, high=(1, 2))}
)
AGENTS = {
    "nested": Agent(name="a", observation=SEEN, action=DONE),
    "continuous": Agent(name="a", observation=Box(shape=(2,)), action=Box(shape=(3,), low=-1, high=1)),
    "masked": Agent(name="a", observation=Box(shape=(2,)), action=Discrete(n=6), action_mask=True),
    "both": Agent(name="a", observation=SEEN, action=Discrete(n=6), action_mask=True),
}


def two(kind: str) -> World:
    """Two alike, who see something in common."""
    agents = tuple(AGENTS[kind].model_copy(update={"name": name}) for name in ("a", "b"))
    return World(id=kind, population=DictPopulation(agents=agents, common=Box(shape=(2,), low=0, high=1)))


def herd(kind: str) -> World:
    return World(id=kind, population=ArrayPopulation(template=AGENTS[kind], capacity=3))


@pytest.fixture(autouse=True)
def _strict() -> Any:
    """What the checkers only warn of is a fault here as well, but for pictures, which a world may lack, and their
    advice that observations be boxes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harmless = ("render", "np_random_seed", "spec", "infinity", "all zeros", "Casting input", "symmetric and norm")
        for words in (
            *harmless,
            "Observation is not a NumPy array",
            "Observation space",
            "We recommend agents",
            "Action space",
        ):
            warnings.filterwarnings("ignore", f"(?s).*{words}.*")
        yield


@pytest.mark.parametrize(
    ("kind", "shape"), [("nested", two), ("continuous", two), ("masked", two), ("nested", herd), ("both", herd)]
)
def test_they_pass_the_tests_of_pettingzoo(kind: str, shape: Callable[[str], World]) -> None:
    """I5: nested spaces, continuous actions, masks, common observations, templates."""
    parallel_api_test(ParallelView(CheckedEnvironment(Scenes(shape(kind)))), num_cycles=60)
    api_test(TurnView(CheckedEnvironment(Scenes(shape(kind)))), num_cycles=60)
    seed_test(lambda: TurnView(CheckedEnvironment(Scenes(shape(kind)))), num_cycles=20)


@pytest.mark.parametrize("kind", AGENTS)
def test_they_pass_the_test_of_gymnasium(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = GymnasiumView(CheckedEnvironment(Scenes(World(id=kind, agents=(AGENTS[kind],)), steady=True)))
    if AGENTS[kind].action_mask:  # whoever plays by masks draws by them, which the test does not
        draw, mask = view.action_space.sample, view.reset()[0]["action_mask"]
        monkeypatch.setattr(view.action_space, "sample", lambda: draw(mask=mask))
    check_env(view, skip_render_check=True)


@pytest.mark.parametrize("beside", [True, False])
def test_games_with_masks_are_played_after_they_went_both_ways(beside: bool) -> None:
    """PettingZoo's, ours, PettingZoo's and ours again; and Gymnasium's. An illegal move is an error in the game."""
    games: list[Any] = [InTurn("plain", beside), Together("nested", beside), Alone("several", beside)]
    turns = TurnView(PettingZooAEC("in", lambda: games[0], 1))
    play(CheckedEnvironment(PettingZooAEC("out", lambda: turns, 1)), 60, 0)
    parallel = ParallelView(PettingZooEnvironment("in", lambda: games[1], 1))
    play(CheckedEnvironment(PettingZooEnvironment("out", lambda: parallel, 1)), 60, 0)
    single = GymnasiumView(GymnasiumEnvironment("in", lambda: games[2], 1))
    play(CheckedEnvironment(GymnasiumEnvironment("out", lambda: single, 1)), 60, 0)
    assert all(game.rules.moves >= 50 for game in games)


def play(environment: Environment, turns: int, seed: int) -> list[Any]:
    """What is told while random legal actions are taken."""
    generator = np.random.default_rng(seed)
    players = [random_player(place, generator) for place in environment.world.places]
    turn, told = environment.reset(seed), []
    for _ in range(turns):
        told.append([said(one) for one in turn.present])
        turn = environment.step([players[one.agent](one) for one in turn.present])
    return told


def said(one: AgentTimeStep) -> Any:
    told = one.observation, one.final_observation, one.action_mask
    return (
        one.agent,
        one.reward.tolist(),
        one.terminated.tolist(),
        [None if rows is None else lists(rows) for rows in told],
    )


def lists(rows: Any) -> Any:
    return rows.tolist() if rows.dtype.names is None else {name: rows[name].tolist() for name in rows.dtype.names}


class Kept(Scenes):
    """Keeps what it told."""

    def __init__(self, world: World, copies: int = 1) -> None:
        super().__init__(world, copies)
        self.told: list[Any] = []

    def _turn(self) -> Turn:
        turn = super()._turn()
        self.told.append([said(one) for one in turn.present])
        return turn


@st.composite
def lone_worlds(draw: st.DrawFn) -> World:
    agent = Agent(name="agent", observation=draw(SPACES), action=draw(FULL))
    leaves = World(id="w", agents=(agent,)).places[0].acted.leaves
    if any(hasattr(leaf.space, "choices") for leaf in leaves) and draw(st.booleans()):
        agent = agent.model_copy(update={"action_mask": True})
    return World(id="w", agents=(agent,))


def narrowed(value: Any) -> Any:
    """As float32 holds it; nested tuples and lists alike."""
    if isinstance(value, dict):
        return {key: narrowed(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [narrowed(part) for part in value]
    if isinstance(value, float) and not isinstance(value, bool):
        return float(np.float32(value))
    return value


@settings(SLOW, max_examples=30)
@given(world=lone_worlds(), seed=st.integers(0, 2**20), form=st.sampled_from(["single", "parallel", "turns"]))
def test_any_world_of_ours_comes_back_as_it_went_out_I5(world: World, seed: int, form: str) -> None:
    """I5: its rows, masks and last observations, and the actions that it is given."""
    kept = Kept(world)
    out: Environment
    if form == "single":
        out = GymnasiumEnvironment("again", lambda: GymnasiumView(CheckedEnvironment(kept)), 1)
    elif form == "parallel":
        out = PettingZooEnvironment("again", lambda: ParallelView(CheckedEnvironment(kept)), 1)
    else:
        out = PettingZooAEC("again", lambda: TurnView(CheckedEnvironment(kept)), 1)
    start = len(kept.told)
    told = play(CheckedEnvironment(out), 4, seed)
    assert narrowed(told) == narrowed(kept.told[start : start + 4])


@settings(SLOW, max_examples=15)
@given(world=lone_worlds(), seed=st.integers(0, 2**20))
def test_any_vector_of_ours_comes_back_as_it_went_out(world: World, seed: int) -> None:
    kept = Kept(world, 3)
    again = CheckedEnvironment(GymnasiumVector("again", VectorView(CheckedEnvironment(kept))))
    start = len(kept.told)
    told = play(again, 13, seed)
    assert narrowed(told) == narrowed(kept.told[start : start + 13])


def test_an_illegal_action_is_told_in_one_sentence() -> None:
    for view in (
        GymnasiumView(Scenes(World(id="w", agents=(AGENTS["masked"],)))),
        TurnView(Scenes(World(id="w", agents=(AGENTS["masked"],)))),
    ):
        view.reset(seed=1)
        mask = view._seen["action_mask"] if isinstance(view, GymnasiumView) else view.observe("a")["action_mask"]
        with raises(
            EnvironmentFault,
            "played_action_invalid",
            where="w, agent a",
            field="action",
            expected="a choice that action_mask allows",
        ):
            view.step(int(np.flatnonzero(mask == 0)[0]))
