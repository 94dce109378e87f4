"""A world that remembers goes on from its state as if nothing had been: the same turns, bit for bit (L1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig, parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.base import Environment, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.lockstep_blocks import build_lockstep_blocks
from workers.environments.registry import BUILT_IN, make
from workers.runtime.state_capture import State, capture

SETTINGS: dict[str, dict[str, Any]] = {"weather": {}, "synthetic": {"episode_steps": 7}}
COPIES = 4


def world(id: str, **keys: Any) -> Environment:
    return make(
        EnvironmentConfig.model_validate({"id": id, "copies": COPIES, "settings": SETTINGS.get(id, {}), **keys})
    )


def bits(turn: Turn) -> dict[str, bytes]:
    """All that a turn tells."""
    return {name: array.tobytes() for name, array in capture(turn).items()}


class Player:
    """Draws legal actions."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._random = environment, np.random.default_rng(3)

    def step(self, turn: Turn) -> Turn:
        actions = []
        for present in turn.present:
            place = self._environment.world.places[present.agent]
            rows = place.acted.zeros(len(present.observation))
            for leaf, column in place.acted.parts(rows):
                size = getattr(leaf.space, "n", None)
                drawn = self._random.integers(size, size=column.shape) if size else self._random.random(column.shape)
                column[...] = drawn
            actions.append(rows)
        return self._environment.step(actions)


def went_on(environment: Environment, player: Player, turn: Turn, turns: int) -> list[dict[str, bytes]]:
    told = []
    for _ in range(turns):
        turn = player.step(turn)
        told.append(bits(turn))
    return told


def stored(state: State) -> State:
    """As after a file."""
    return {name: np.array(array) for name, array in state.items()}


@pytest.mark.parametrize(
    ("id", "keys"),
    [
        *((id, {}) for id in (*BUILT_IN, "gymnasium:CartPole-v1")),
        ("treasure_hunt", {"observe": {"add": ["last_action", "last_reward"]}}),
        ("treasure_hunt", {"central_state": "joint"}),
        ("foraging", {"teams": {"pair": "all"}}),
        ("workers.environments.worlds.blind_cartpole:BlindCartPole", {"observe": {"add": ["last_action"]}}),
    ],
)
def test_built_in_worlds_and_cartpole_go_on_from_their_state_L1(id: str, keys: dict[str, Any]) -> None:
    first, second = world(id, **keys), world(id, **keys)
    assert first.has_state
    player = Player(first)
    turn = first.reset(5)
    for _ in range(230):
        turn = player.step(turn)
    state, turn_there = stored(first.get_state()), stored(capture(turn))
    assert {array.dtype.hasobject for array in state.values()} == {False}
    random = player._random.bit_generator.state
    expected = went_on(first, player, turn, 130)
    other = Player(second)
    other._random.bit_generator.state = random
    began = second.reset(1)
    for _ in range(3):
        began = other.step(began)
    other._random.bit_generator.state = random
    second.set_state(state)
    again = second.get_state()
    assert state.keys() == again.keys()
    assert [name for name in state if (state[name] != again[name]).any()] == []
    assert turn_there
    assert went_on(second, other, turn, 130) == expected


@pytest.mark.parametrize("id", ["treasure_hunt", "gymnasium:CartPole-v1"])
def test_what_an_actor_was_dealt_goes_on_with_the_turns_that_wait_L1(id: str) -> None:
    run = parse_run({"schedule": "lockstep", "act_block": 4, "actors": 1, "environment": {"id": id, "copies": 8}})
    plain, dealt = (build_lockstep_blocks(run, 0) for _ in range(2))
    first, second = (CheckedEnvironment(one) for one in (plain, dealt))
    assert first.has_state
    player, turn = Player(first), first.reset(0)
    for _ in range(301):
        turn = player.step(turn)
    state, random = stored(first.get_state()), player._random.bit_generator.state
    expected = [bits(turn), *went_on(first, player, turn, 60)]
    other = Player(second)
    second.reset(9)
    second.set_state(state)
    other._random.bit_generator.state = random
    assert [bits(dealt.turn), *went_on(second, other, dealt.turn, 60)] == expected


def test_a_state_of_something_else_is_refused_in_a_sentence_L1() -> None:
    environment = world("deep_sea")
    environment.reset(0)
    with raises(ConfigurationError, "state_not_restorable", what="DeepSea"):
        environment.set_state({"tree": np.frombuffer(b"{", np.uint8)})
