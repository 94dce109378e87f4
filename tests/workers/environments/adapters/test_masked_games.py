"""Masks of legal actions: whoever obeys them never makes an illegal move, in any form of environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import EnvironmentFault
from protocol.spaces.drawing import first_legal
from tests.faults import raises
from tests.workers.environments.adapters.masked_games import ACTIONS, NAMES, Alone, InTurn, Together
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.gymnasium_adapter import from_id as gymnasium_world
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment, from_id
from workers.environments.adapters.space_conversion import translate
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment

Make = Callable[[Callable[[], Any], int], Environment]


def played(environment: Environment, turns: int, first: bool = False, seed: int = 0) -> Environment:
    """Plays legal moves, at random or the first; the guard and the games see to it that they are."""
    checked, generator = CheckedEnvironment(environment), np.random.default_rng(seed)
    places = environment.world.places
    players = [random_player(place, generator) for place in places]
    turn = checked.reset(seed)
    for _ in range(turns):
        actions = []
        for one in turn.present:
            assert one.action_mask is not None
            place = places[one.agent]
            actions.append(
                first_legal(place.acted, len(one.observation), one.action_mask) if first else players[one.agent](one)
            )
        turn = checked.step(actions)
    checked.close()
    return environment


def vector(mode: AutoresetMode) -> Make:
    return lambda make_one, copies: GymnasiumVector("masked", SyncVectorEnv([make_one] * copies, autoreset_mode=mode))


FORMS: dict[str, tuple[Any, Make]] = {
    "single": (Alone, lambda make_one, copies: GymnasiumEnvironment("masked", make_one, copies)),
    "parallel": (Together, lambda make_one, copies: PettingZooEnvironment("masked", make_one, copies)),
    "turns": (InTurn, lambda make_one, copies: PettingZooAEC("masked", make_one, copies)),
    **{mode.name: (Alone, vector(mode)) for mode in AutoresetMode},
}


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    kind=st.sampled_from(sorted(ACTIONS)),
    beside=st.booleans(),
    first=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_a_random_masked_game_never_gets_an_illegal_action_I3(
    form: str, kind: str, beside: bool, first: bool, seed: int
) -> None:
    """I3: one choice, several and nested ones; masks beside the observation or in infos; agents that end."""
    game, adapt = FORMS[form]
    games: list[Any] = []

    def make_one() -> Any:
        games.append(game(kind, beside, seed + len(games)))
        return games[-1]

    played(adapt(make_one, 3), 40, first, seed)
    assert all(one.rules.moves >= 20 for one in games[-3:])


def test_a_classic_is_played_to_the_end_without_an_illegal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: PettingZoo ends a game in which an illegal move is made, with -1 for who made it, and warns."""
    from pettingzoo.utils.wrappers import TerminateIllegalWrapper

    inner, moves = TerminateIllegalWrapper.step, []

    def step(self: Any, action: Any) -> None:
        if action is not None and not (self.terminations[self.agent_selection]):
            moves.append(self.observe(self.agent_selection)["action_mask"][action])
        inner(self, action)

    monkeypatch.setattr(TerminateIllegalWrapper, "step", step)
    environment = CheckedEnvironment(from_id("pettingzoo:pettingzoo.classic.tictactoe_v3", 4, {}))
    places = environment.world.places
    assert [place.agent.action_mask for place in places] == [True, True]
    assert places[0].observed.nested is False, "what lies beside the mask is the observation"
    generator = np.random.default_rng(0)
    players = [random_player(place, generator) for place in places]
    turn, ends = environment.reset(0), []
    for _ in range(300):
        turn = environment.step([players[one.agent](one) for one in turn.present])
        news: tuple[AgentOutcome | AgentTimeStep, ...] = (*turn.outcomes, *turn.present)
        for told in news:
            ends += told.reward[told.terminated].tolist()
    assert len(ends) > 60
    assert set(ends) <= {-1, 0, 1}
    assert sum(ends) == pytest.approx(0, abs=4), "wins and losses are even, but for games whose end half is told of"
    assert len(moves) >= 600
    assert all(moves)
    environment.close()


def test_the_mask_of_taxi_is_found_in_its_info() -> None:
    """I3: in Gymnasium's single and vector forms."""
    environment = gymnasium_world("gymnasium:Taxi-v4", 3, {})
    assert environment.world.agents[0].action_mask
    played(environment, 30)
    envs = gymnasium.make_vec("Taxi-v4", num_envs=3, vectorization_mode="sync")
    played(GymnasiumVector("taxi", envs), 30)


class Spoilt(Alone):
    """Tells a mask in the wrong way."""

    def __init__(self, mask: Any, kind: str = "plain", late: bool = False) -> None:
        super().__init__(kind)
        self.mask, self.late, self.resets = mask, late, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, info = super().reset(seed=seed)
        self.resets += 1
        if self.resets == 1:
            return seen, {} if self.late else info
        return seen, {"action_mask": self.mask}


@pytest.mark.parametrize(
    ("mask", "form", "kind", "facts"),
    [
        (np.ones(4, np.int8), "plain", "action_mask_invalid", {"expected": [5], "value": "int8[4]"}),
        (np.ones(5), "plain", "action_mask_invalid", {"expected": [5], "value": "float64[5]"}),
        (np.full(5, 2), "plain", "action_mask_invalid", {"expected": [5], "value": "int64[5] with [2]"}),
        (np.ones(4), "nested", "action_mask_part_missing", {"leaf": "go", "value": "ndarray"}),
        ({"go": np.ones(4, np.int8)}, "nested", "action_mask_part_missing", {"leaf": "hold", "value": "of go"}),
        (np.zeros(5, np.int8), "plain", "agent_data_invalid", {"value": "True for none in row 0"}),
    ],
)
def test_a_wrong_mask_is_told_in_one_sentence(mask: Any, form: str, kind: str, facts: Any) -> None:
    environment = CheckedEnvironment(GymnasiumEnvironment("spoilt", lambda: Spoilt(mask, form), 1))
    with raises(EnvironmentFault, kind, field="action_mask", **facts) as caught:
        environment.reset(0)
    assert str(caught.value).startswith("spoilt, ")


def test_a_mask_that_comes_late_is_a_fault() -> None:
    environment = GymnasiumEnvironment("spoilt", lambda: Spoilt(np.ones(5, np.int8), late=True), 1)
    with raises(EnvironmentFault, "action_mask_came_late", where="spoilt, agent agent"):
        environment.reset(0)


class Sudden(Alone):
    """Tells a mask in steps alone, or from its second episode on."""

    def __init__(self, in_steps: bool) -> None:
        super().__init__()
        self.in_steps, self.resets = in_steps, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        seen, info = super().reset(seed=seed)
        return seen, info if self.resets > 3 and not self.in_steps else {}

    def step(self, action: Any) -> Any:
        self.rules.masks["agent"][:] = 1  # all is legal: only the way in which it is told is wrong
        *told, info = super().step(action)
        return *told, info if self.in_steps else {}


@pytest.mark.parametrize("in_steps", [True, False])
def test_a_mask_that_comes_in_mid_run_is_a_fault_and_not_passed_over(in_steps: bool) -> None:
    """I3"""
    environment = GymnasiumEnvironment("sudden", lambda: Sudden(in_steps), 1)
    with raises(EnvironmentFault, "action_mask_came_late", where="sudden, agent agent"):
        unmasked(environment, 200)


def unmasked(environment: Environment, turns: int) -> None:
    """Plays first moves, although masks may forbid them."""
    turn = environment.reset(0)
    for _ in range(turns):
        places = environment.world.places
        turn = environment.step([first_legal(places[one.agent].acted, len(one.observation)) for one in turn.present])


class Newcomer(Together):
    """Whoever comes later brings a mask; at first nobody has one."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, _ = super().reset(seed, options)
        self.agents = ["ant"]
        return {"ant": seen["ant"]}, {"ant": {}}

    def step(self, actions: dict[str, Any]) -> Any:
        for name in NAMES:
            self.rules.draw(name)
        come = "bee" not in self.agents
        self.agents = list(NAMES)
        infos = {"bee": self.rules.info("bee"), "ant": {}}
        acted = dict.fromkeys(NAMES if come else actions, False)
        return {name: self.rules.seen(name) for name in NAMES}, dict.fromkeys(acted, 0.0), acted, acted, infos


def test_a_mask_of_an_agent_that_comes_later_is_a_fault_and_not_passed_over() -> None:
    """I3"""
    with raises(EnvironmentFault, "action_mask_came_late", where="newcomer, agent bee"):
        unmasked(PettingZooEnvironment("newcomer", Newcomer, 2), 3)


def test_what_is_called_a_mask_and_cannot_be_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It stays an observation, beside which everything is legal."""
    seen = gymnasium.spaces.Dict(observation=gymnasium.spaces.Discrete(2), action_mask=gymnasium.spaces.MultiBinary(5))
    world, _ = translate("board", {"ant": seen}, {"ant": gymnasium.spaces.Discrete(4)}, {})
    assert not world.agents[0].action_mask
    assert "where='board, agent ant' reason='MultiBinary(5) is no mask of Discrete(4)'" in caplog.text
