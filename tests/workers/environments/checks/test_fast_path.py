"""The quick look lets nothing pass that the full one would refuse, and lets pass what is as always."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocol.spaces import Agent, Box, Dict, Discrete, World
from workers.environments.base import AgentTimeStep
from workers.environments.checks.fast_path import FastCheck

WORLD = World(id="w", agents=(Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4)),))
NONE = np.zeros(5, np.bool_)


def usual() -> AgentTimeStep:
    return AgentTimeStep(0, np.ones((5, 3), np.float32), np.ones(5, np.float32), NONE.copy(), NONE.copy())


def changed(array: Any, at: Any, value: Any) -> Any:
    array[at] = value
    return array


def test_what_is_as_always_passes_also_where_an_episode_ended_for_good() -> None:
    glance = FastCheck(WORLD.places[0], 5)
    assert glance.is_valid_turn(usual())
    assert glance.is_valid_turn(replace(usual(), terminated=~NONE))
    assert glance.are_valid_actions(np.array([0, 1, 2, 3, 0]))


def some(copies: Any) -> AgentTimeStep:
    """Present in three of five."""
    return AgentTimeStep(0, np.ones((3, 3), np.float32), np.ones(3, np.float32), NONE[:3], NONE[:3], copies=copies)


def test_whoever_is_present_in_some_copies_only_passes_as_well() -> None:
    glance, copies = FastCheck(WORLD.places[0], 5), np.array([0, 2, 4])
    assert glance.is_valid_turn(some(copies))
    assert glance.is_valid_turn(replace(some(copies), clock=np.ones(3)))
    assert glance.are_valid_actions(np.array([0, 3, 1]), copies)
    assert not glance.are_valid_actions(np.array([0, 3, 1, 1, 1]), copies)
    assert not glance.is_valid_turn(replace(some(copies), clock=np.array([0.0, np.nan, 1.0])))
    assert not glance.is_valid_turn(replace(some(copies), clock=np.ones(2)))


@pytest.mark.parametrize(
    "copies",
    [
        np.array([-1, 2, 4]),
        np.array([2, 0, 4]),
        np.array([0, 2]),
        np.array([[0, 2, 4]]),
        np.array([0, 2, 4], np.int32),
        [0, 2, 4],
    ],
)
def test_copies_that_are_none_or_not_in_order_do_not_pass(copies: Any) -> None:
    assert not FastCheck(WORLD.places[0], 5).is_valid_turn(some(copies))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda p: replace(p, observation=changed(p.observation, (4, 2), np.nan)),
        lambda p: replace(p, observation=changed(p.observation, (0, 0), 1e30)),
        lambda p: replace(p, observation=p.observation[:4]),
        lambda p: replace(p, observation=None),
        lambda p: replace(p, reward=changed(p.reward, 1, -np.inf)),
        lambda p: replace(p, reward=p.reward[:, None]),
        lambda p: replace(p, truncated=NONE[:4]),
        lambda p: replace(p, final_index=None),
        lambda p: replace(p, final_observation=np.ones((1, 3), np.float32)),
        lambda p: replace(p, action_mask=np.ones((5, 4), np.bool_)),
        lambda p: replace(p, copies=np.arange(4)),
    ],
)
def test_anything_else_is_looked_at_in_full(spoil: Callable[[AgentTimeStep], AgentTimeStep]) -> None:
    assert not FastCheck(WORLD.places[0], 5).is_valid_turn(spoil(usual()))


def test_one_bad_number_among_very_many_is_seen_and_large_ones_are_no_fault() -> None:
    world = World(id="w", agents=(Agent(name="a", observation=Box(shape=(9_000,)), action=Discrete(n=4)),))
    many = np.full((5, 9_000), 1e30, np.float32)
    assert FastCheck(world.places[0], 5).is_valid_turn(replace(usual(), observation=many))
    assert not FastCheck(world.places[0], 5).is_valid_turn(
        replace(usual(), observation=changed(many, (4, 8_999), -np.inf))
    )


@pytest.mark.parametrize(
    "chosen",
    [
        np.array([0, 1, 2, 4, 0]),
        np.array([0, 1, -1, 3, 0]),
        np.zeros((5, 1), np.int64),
        None,
    ],
)
def test_an_action_that_is_none_of_the_choices_does_not_pass(chosen: Any) -> None:
    assert not FastCheck(WORLD.places[0], 5).are_valid_actions(chosen)


def test_nested_and_masked_agents_and_other_actions_are_always_looked_at_in_full() -> None:
    def glance(**other: Any) -> FastCheck:
        spaces: dict[str, Any] = {"observation": Box(shape=(3,)), "action": Discrete(n=4)} | other
        return FastCheck(World(id="w", agents=(Agent(name="a", **spaces),)).places[0], 5)

    assert not glance(observation=Dict(spaces={"x": Box(shape=(3,))})).is_valid_turn(usual())
    assert not glance(action_mask=True).is_valid_turn(usual())
    assert not glance(action=Discrete(n=4, start=1)).are_valid_actions(np.ones(5, np.int64))
    assert not glance(action=Box(shape=())).are_valid_actions(np.ones(5, np.int64))
