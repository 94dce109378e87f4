"""Our worlds pass the tests that PettingZoo and Gymnasium have for their own, and so does what went both ways."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from mpe2 import simple_spread_v3
from pettingzoo.test import api_test, parallel_api_test, seed_test

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises, words_in
from tests.workers.environments.adapters.random_games import NAMES, InTurns, Together
from tests.workers.environments.worlds import gridworld
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.batched.gymnasium_vector import CartPole, GymnasiumVector
from workers.environments.adapters.gymnasium_adapter import from_id as gymnasium_world
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.adapters.sorrel_adapter import SorrelEnvironment
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn
from workers.environments.registry import make
from workers.environments.views.gymnasium_views import GymnasiumView, VectorView
from workers.environments.views.pettingzoo_views import ParallelView, TurnView

SMALL: dict[str, dict[str, Any]] = {
    "treasure_hunt": {"height": 7, "width": 7, "turns": 12},
    "tag": {"turns": 12},
    "matrix_game": {"turns": 12, "observe": "last"},
    "memory": {"agents": 2},
}


def world(id: str, mode: Any = None, copies: int = 1, **rest: Any) -> Environment:
    return make(EnvironmentConfig(id=id, copies=copies, turn_mode=mode, settings=SMALL.get(id, {}) | rest))


@pytest.fixture(autouse=True)
def _strict() -> Any:
    """What the checkers only warn of is a fault here as well, but for pictures, which a world may lack."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for harmless in (".*render.*", ".*np_random_seed.*", ".*spec.*", ".*infinity.*", ".*all zeros.*"):
            warnings.filterwarnings("ignore", harmless)
        yield


@pytest.mark.parametrize("id", ["treasure_hunt", "memory"])
def test_built_in_worlds_pass_the_test_of_parallel_environments(id: str) -> None:
    parallel_api_test(ParallelView(world(id, "simultaneous")), num_cycles=60)


@pytest.mark.parametrize(("id", "mode"), [("tag", "sequential"), ("memory", "simultaneous")])
def test_built_in_worlds_pass_the_test_of_environments_in_turns(id: str, mode: str) -> None:
    api_test(TurnView(world(id, mode)), num_cycles=60)


def test_a_seed_repeats_the_run() -> None:
    seed_test(lambda: TurnView(world("treasure_hunt", "sequential")), num_cycles=40)


def test_the_wrapped_pass_as_well_both_ways() -> None:
    """PettingZoo's own, ours, and PettingZoo's again; a gridworld in Sorrel's manner; random games."""
    parallel_api_test(ParallelView(PettingZooEnvironment("spread", simple_spread_v3.parallel_env, 1)), num_cycles=60)
    api_test(TurnView(PettingZooAEC("spread", simple_spread_v3.env, 1)), num_cycles=60)
    api_test(TurnView(SorrelEnvironment("grid", gridworld.make, 1)), num_cycles=60)


def test_one_agent_passes_the_test_of_gymnasium() -> None:
    check_env(GymnasiumView(world("memory", agents=1)), skip_render_check=True)
    check_env(GymnasiumView(gymnasium_world("gymnasium:MountainCar-v0", 1, {})), skip_render_check=True)
    check_env(GymnasiumView(gymnasium_world("gymnasium:CartPole-v1", 1, {})), skip_render_check=True)


def rows(turns: Callable[[], Turn], step: Callable[[list[Any]], Turn], count: int) -> list[Any]:
    """What a world tells while the actions 0, 1, 0 ... are taken."""
    told = []
    turn = turns()
    for t in range(count):
        news: tuple[AgentOutcome | AgentTimeStep, ...] = (*turn.outcomes, *turn.present)
        for one in news:
            final = None if one.final_observation is None else one.final_observation.tolist()
            told.append([one.agent, one.reward.tolist(), one.terminated.tolist(), one.truncated.tolist(), final])
        told.append([one.observation.tolist() for one in turn.present])
        turn = step([np.full(len(one.observation), t % 2) for one in turn.present])
    return told


@pytest.mark.parametrize("ends", [{"max_episode_steps": 9}, {}])
def test_a_vector_of_ours_is_taken_back_with_the_same_rows(ends: dict[str, Any]) -> None:
    first = gymnasium_world("gymnasium:CartPole-v1", 4, ends)
    assert isinstance(first, CartPole)
    view = VectorView(gymnasium_world("gymnasium:CartPole-v1", 4, ends))
    assert (view.num_envs, view.observation_space.shape) == (4, (4, 4))
    again = GymnasiumVector("again", view)
    there = rows(lambda: again.reset(3), again.step, 60)
    seed = int(np.random.Generator(np.random.PCG64(copy_seeds(3, 1)[0])).integers(2**31))
    assert there == rows(lambda: first.reset(seed), first.step, 60)
    assert any(entry[3] == [True] * 4 for entry in there if len(entry) == 5) == bool(ends)
    again.close()
    first.close()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**20), in_turns=st.booleans())
def test_random_games_that_go_out_and_come_back_tell_every_reward_once(seed: int, in_turns: bool) -> None:
    """I5: a game, our world of it, PettingZoo's view of that, our world again: the first episode's returns and ends
    are those of the game's books."""
    game: Any = InTurns(seed) if in_turns else Together(seed, joins=0.0)
    outer: Environment
    if in_turns:
        outer = PettingZooAEC("out", lambda: TurnView(PettingZooAEC("in", lambda: game, 1)), 1)
    else:
        outer = PettingZooEnvironment("out", lambda: ParallelView(PettingZooEnvironment("in", lambda: game, 1)), 1)
    turn, told, ends = outer.reset(0), dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0)
    while len(game.books.before) < 2:
        turn = outer.step([np.array([int(one.observation[0, 1]) % 5]) for one in turn.present])
        news: tuple[AgentOutcome | AgentTimeStep, ...] = (*turn.outcomes, *turn.present)
        for one in news:
            told[NAMES[one.agent]] += float(one.reward.sum())
            ends[NAMES[one.agent]] += int((one.terminated + 2 * one.truncated).sum())
            if one.final_observation is not None:
                ends[NAMES[one.agent]] += 10 * int(one.final_observation[0, 1])
    books = game.books.before[1]
    assert told == {name: sum(row.reward for row in rows) for name, rows in books.items()}
    kinds = {True: 1, False: 2}
    assert ends == {
        name: sum(kinds[row.terminated] + 10 * int(row.final or 0) for row in rows if row.terminated or row.truncated)
        for name, rows in books.items()
    }


class Respawning(Together):
    """Somebody comes back in every step, and nobody minds what is done."""

    def step(self, actions: dict[str, int]) -> Any:
        return super().step(dict.fromkeys(actions, int(self.time % 5)))


def test_who_comes_back_within_an_episode_does_so_only_in_the_next_for_pettingzoo() -> None:
    view = ParallelView(PettingZooEnvironment("in", lambda: Respawning(3, joins=0.9), 1))
    for _ in range(5):
        view.reset()
        gone: set[str] = set()
        for _ in range(500):
            acting = set(view.agents)
            assert not acting & gone
            _, _, terminated, truncated, _ = view.step(dict.fromkeys(acting, 0))
            gone |= {name for name in acting if terminated[name] or truncated[name]}
            if not view.agents:
                break
        assert gone


@pytest.mark.parametrize(
    ("use", "kind", "facts"),
    [
        (lambda v: v.step({}), "no_episode_running", {"environment": "matrix_game"}),
        (
            lambda v: (v.reset(), v.step({"player_0": 0})),
            "action_invalid",
            {"environment": "matrix_game", "agent": "player_1", "value": "missing"},
        ),
        (
            lambda v: (v.reset(), v.step({"player_0": 0, "player_1": 0, "x": 1})),
            "action_invalid",
            {"environment": "matrix_game", "agent": "x", "value": "there"},
        ),
        (
            lambda v: (v.reset(), v.step({"player_0": 0, "player_1": 3})),
            "element_outside_bounds",
            {"field": "matrix_game, agent player_1: action", "low": 0, "high": 2, "value": 3},
        ),
    ],
)
def test_wrong_use_of_a_parallel_view_is_told_in_one_sentence(
    use: Callable[[Any], Any], kind: str, facts: dict[str, Any]
) -> None:
    with raises(EnvironmentFault, kind, **facts):
        use(ParallelView(world("matrix_game")))


def test_wrong_use_of_the_other_views_is_told_in_one_sentence() -> None:
    turns, one = TurnView(world("tag")), GymnasiumView(world("memory", agents=1))
    many = VectorView(world("memory", agents=1, copies=2))
    for view in (turns, one):
        with raises(EnvironmentFault, "no_episode_running"):
            view.step(0)
        view.reset()
        with raises(EnvironmentFault, "element_outside_bounds", low=0, high=3, value=7) as caught:
            view.step(7)
        assert "agent_0" in words_in(str(caught.value))
    with raises(EnvironmentFault, "step_before_reset", environment="memory"):
        many.step(np.zeros(2, np.int64))
    many.reset(seed=1)
    with raises(EnvironmentFault, "array_form_mismatch", field="action", dtype=np.int64, got_dtype=np.float64):
        many.step(np.zeros(2))
    with raises(EnvironmentFault, "played_action_invalid", field="action", expected="0 to 3", value="-1 at [1]"):
        many.step(np.array([0, -1]))
    with raises(EnvironmentFault, "seed_not_one_number", environment="memory", value="list"):
        many.reset(seed=[1, 2])
    parallel = ParallelView(world("tag", "sequential"))
    parallel.reset()
    with raises(EnvironmentFault, "agent_absent_before_end", environment="tag", agent="agent_0"):
        parallel.step({"agent_0": 0})


@pytest.mark.parametrize(
    ("view", "id", "copies", "kind", "count"),
    [
        (ParallelView, "tag", 2, "pettingzoo_view_needs_one_copy", 2),
        (TurnView, "tag", 2, "pettingzoo_view_needs_one_copy", 2),
        (GymnasiumView, "memory", 2, "gymnasium_view_needs_one_agent", 2),
        (VectorView, "tag", 2, "gymnasium_view_needs_one_agent", 5),
    ],
)
def test_what_a_view_cannot_show_is_refused(view: Any, id: str, copies: int, kind: str, count: int) -> None:
    with raises(ConfigurationError, kind, environment=id, count=count):
        view(world(id, copies=copies))
