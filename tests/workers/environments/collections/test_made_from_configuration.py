"""From a configuration to a collection of real worlds: in this process, over several, for training and evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from protocol.config.environment import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises, words_in
from tests.playing import baselines
from workers.environments.base import Environment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import describe, make

pytestmark = pytest.mark.usefixtures("forked_steppers")
SMALL = {"id": "matrix_game", "settings": {"game": "chicken", "turns": 3}}
LONG = {"id": "matrix_game", "settings": {"game": "stag_hunt", "turns": 4}}
GAMES = {"chicken": SMALL, "stag": LONG}


def config(**keys: Any) -> EnvironmentConfig:
    return EnvironmentConfig.model_validate({"copies": 4, "members": GAMES, **keys})


def played(environment: Environment, steps: int, seed: int = 0) -> dict[str, int]:
    """Episodes by member, after so many steps of all groups."""
    turn = environment.reset(seed)
    for _ in range(steps):
        turn = environment.step([np.zeros(len(one.reward), np.int64) for one in turn.present])
    environment.reset(seed)  # waits for every process
    found: dict[str, int] = {}
    for (member, agent), (episodes, returns) in environment.take_episodes().items():
        assert agent in (0, 1)
        # Both swerve (0 each), or both hunt the stag (4 each): see the games' tables.
        each = {"chicken": 0.0 * 3, "stag": 4.0 * 4}[member]
        assert returns == episodes * each
        found[member] = found.get(member, 0) + episodes
    assert environment.take_episodes() == {}
    environment.close()
    return found


def test_the_world_of_a_collection_is_learned_from_one_copy() -> None:
    world = describe(config(prior={"chicken": 1, "stag": 1}, processes=2))
    assert (world.id, world.episode_steps) == ("collection", None)
    assert [agent.name for agent in world.agents] == ["player_0", "player_1"]


def test_evaluation_plays_the_test_side_and_training_the_other_I6_I9() -> None:
    split = config(split={"train": ["chicken"], "test": ["stag"]})
    assert played(CheckedEnvironment(make(split)), 12) == {"chicken": 2 * 4 * 4}
    assert played(CheckedEnvironment(make(split, purpose="evaluate")), 12) == {"stag": 2 * 4 * 3}


def test_evaluation_of_a_curriculum_plays_all_of_it_and_reports_each_I9() -> None:
    ladder = config(curriculum={"after": {"stag": ["chicken"]}, "threshold": {"chicken": 1.0}}, copies=16)
    assert played(CheckedEnvironment(make(ladder)), 24).keys() == {"chicken"}
    assert played(CheckedEnvironment(make(ladder, purpose="evaluate")), 24).keys() == {"chicken", "stag"}


def test_processes_step_their_shares_and_tell_what_ended_I6_I9() -> None:
    groups = 2
    spread = config(prior={"chicken": 1, "stag": 1}, copies=8, processes=2, async_factor=groups)
    found = played(CheckedEnvironment(make(spread)), 48 * groups)
    episodes = found["chicken"] * 3 + found["stag"] * 4  # in steps of one player in one copy
    assert 2 * 8 * (48 - 2 * 4) <= episodes <= 2 * 8 * (48 + groups)
    assert min(found.values()) > 2 * 8 * 2


def test_what_a_process_told_before_it_died_is_counted_and_it_begins_anew_I9() -> None:
    """Its curriculum begins from its first environment again, the other process's goes on."""
    ladder = {"after": {"stag": ["chicken"]}, "threshold": {"chicken": 0.0}, "episodes": 1, "rehearsal": 0.0}
    before = {*psutil.Process().children()}
    environment = CheckedEnvironment(make(config(curriculum=ladder, copies=2, processes=2)))
    turn = environment.reset(0)
    told: dict[str, int] = {}
    for step in range(47):
        if step == 23:  # in the middle of an episode of each: 3 + 5 * 4 steps are made
            (victim, _) = sorted({*psutil.Process().children()} - before, key=lambda one: one.create_time())
            victim.kill()
        turn = environment.step([np.zeros(len(one.reward), np.int64) for one in turn.present])
    for (member, agent), (episodes, _) in environment.take_episodes().items():
        told[f"{member} {agent}"] = episodes
    environment.close()
    assert environment.restarts == 1
    assert turn.present
    survivor, lost = {"chicken": 1, "stag": 11}, {"chicken": 1 + 1, "stag": 5 + 5}
    assert told == {f"{member} {agent}": survivor[member] + lost[member] for member in survivor for agent in (0, 1)}


def test_one_process_draws_what_this_process_draws() -> None:
    here = config(prior={"chicken": 1, "stag": 2}, copies=8)
    there = here.model_copy(update={"processes": 1})
    assert played(CheckedEnvironment(make(here)), 60, seed=4) == played(CheckedEnvironment(make(there)), 60, seed=4)


def test_baselines_play_the_collection() -> None:
    """Also where ends are told to agents that do not act then."""
    tag = {name: {"id": "tag", "settings": {"turns": turns}} for name, turns in (("short", 2), ("long", 4))}
    found = baselines(config(members=tag, prior={"short": 1, "long": 1}), 40, 0)
    assert found.keys() == {f"agent_{k}" for k in range(5)}
    earned = sum(one["random"] for one in found.values())
    assert 2 * 40 < earned < 4 * 40, "four of five earn 10 each turn, of which there are 2 or 4"


def test_worlds_that_do_not_fit_are_refused_where_they_are_made_I9() -> None:
    members = {"chicken": SMALL, "climbing": {"id": "matrix_game", "settings": {"game": "climbing"}}}
    wrong = config(members=members, prior={"chicken": 1, "climbing": 1})
    apart = {"member": "chicken", "other": "climbing", "field": "action", "agent": "player_0"}
    with raises(ConfigurationError, "member_spaces_differ", **apart):
        describe(wrong)
    with raises(ConfigurationError, "member_spaces_differ") as caught:
        make(wrong.model_copy(update={"processes": 1}))
    assert {"'chicken'", "'climbing'", "action", "'player_0'"} <= words_in(str(caught.value))


def test_a_member_with_wrong_settings_is_named() -> None:
    members = {"chicken": SMALL, "odd": {"id": "matrix_game", "settings": {"gme": 1}}}
    with raises(
        ConfigurationError,
        "unknown_environment_setting",
        field="gme",
        key="environment.members.odd",
        member="odd",
    ):
        make(config(members=members, adversarial={}))
