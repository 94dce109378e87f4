"""The rules of tag, on states set by hand and by what must hold in any run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.playing import play
from workers.environments.base import Turn, random_player
from workers.environments.worlds.tag import EMPTY, FREE, IT, WALL, Tag

UP, DOWN, LEFT, RIGHT = range(4)


def world(lines: list[str], it: int = 0, copies: int = 2, **options: Any) -> Tag:
    """A world that looks like `lines` in every copy; digits are agents, number `it` is it."""
    agents = sum(cell.isdigit() for line in lines for cell in line)
    env = Tag(copies, height=len(lines), width=len(lines[0]), agents=agents, **{"radius": 2, "turns": 100, **options})
    env.reset(0)
    margin = env.settings.radius - 1
    for copy in range(copies):
        for y, line in enumerate(lines):
            for x, cell in enumerate(line):
                at = env._ground.first[copy] + (y + margin) * env._ground.stride + x + margin
                env._grid[at] = {"#": WALL, " ": EMPTY}.get(cell, IT if cell == str(it) else FREE)
                if cell.isdigit():
                    env._position[int(cell), copy] = at
    env._it[:] = it
    return env


def act(env: Tag, *actions: int) -> Turn:
    return env.step([np.full(env.copies, action) for action in actions])


def test_it_tags_whom_it_stands_beside_after_its_move() -> None:
    env = world(["######", "#0 1 #", "######"], turn_mode="simultaneous")
    turn = act(env, RIGHT, RIGHT)
    assert env.render() == "######\n# a I#\n######", (
        "tagged before it fled; then it fled, and stands too far to tag back"
    )
    assert [p.reward.tolist() for p in turn.present] == [[10, 10], [0, 0]]


def test_one_who_flees_first_is_not_tagged() -> None:
    env = world(["######", "#1 0 #", "######"], it=1)
    act(env, RIGHT)  # agent 0 flees
    assert env.render() == "######\n#I  a#\n######"
    act(env, RIGHT)
    assert env.render() == "######\n# I a#\n######"


def test_the_tagged_may_tag_back_with_its_next_move() -> None:
    env = world(["#####", "#01 #", "#####"])
    act(env, LEFT)
    assert env.render() == "#####\n#aI #\n#####"
    turn = act(env, UP)
    assert env.render() == "#####\n#Ia #\n#####"
    assert turn.present[0].reward.tolist() == [0, 0], "who is it when the turn ends earns nothing in it"


def test_of_several_neighbours_the_first_of_up_down_left_right_is_tagged_and_only_one() -> None:
    env = world(["#####", "# 1 #", "#203#", "#####"], turn_mode="sequential")
    act(env, DOWN)
    assert env.render() == "#####\n# I #\n#aaa#\n#####"


def test_walls_and_agents_cannot_be_entered_and_cost_nothing_more() -> None:
    env = world(["########", "#0   12#", "########"], turn_mode="simultaneous")
    before = env.render()
    turn = act(env, UP, RIGHT, RIGHT)
    assert env.render() == before
    assert [float(p.reward[0]) for p in turn.present] == [0, 10, 10]


def test_D3_of_two_who_race_for_one_cell_the_first_gets_it() -> None:
    env = world(["########", "#0   1 #", "#    2 #", "########"], turn_mode="simultaneous")
    act(env, UP, LEFT, UP)
    assert env.render() == "########\n#I  aa #\n#      #\n########"
    env = world(["########", "#0  1 2#", "########"], turn_mode="simultaneous")
    act(env, UP, RIGHT, LEFT)
    assert env.render() == "########\n#I   aa#\n########"


def test_D2_a_sequential_agent_sees_who_was_tagged_before_it_acts() -> None:
    env = world(["#####", "#01 #", "#####"])
    turn = act(env, LEFT)
    (second,) = turn.present
    assert second.agent == 1
    assert second.observation[0].argmax(axis=0)[2].tolist() == [WALL, FREE, IT, EMPTY, WALL]
    assert turn.env_steps == 0


def test_D4_simultaneous_agents_see_the_turns_beginning() -> None:
    env = world(["#####", "#0 1#", "#####"], turn_mode="simultaneous")
    views = [p.observation[0].argmax(axis=0)[2].tolist() for p in env._present()]
    assert views == [[WALL, WALL, IT, EMPTY, FREE], [IT, EMPTY, FREE, WALL, WALL]]


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_exactly_one_is_it_nobody_is_lost_and_a_turn_pays_the_same_whoever_plays(turn_mode: Any) -> None:
    env = Tag(16, turn_mode, height=6, width=6, agents=5, turns=9)
    generator = np.random.default_rng(0)
    env.reset(1)
    tags = 0
    for _ in range(200):
        it = env._it.copy()
        present = 5 if turn_mode == "simultaneous" else 1
        turn = env.step([generator.integers(4, size=16) for _ in range(present)])
        tags += int((it != env._it).sum())
        for copy in range(16):
            contents = env.contents(copy)
            assert ((contents == IT).sum(), (contents == FREE).sum()) == (1, 4)
        assert (env._grid[env._position[env._it, np.arange(16)]] == IT).all()
        assert len(np.unique(env._position)) == 5 * 16
        for p in turn.present:
            assert (p.observation.sum(axis=1) == 1).all()
        if turn.env_steps:
            assert env._reward.sum(axis=0).tolist() == [40] * 16
    assert tags > 100


def test_anybody_starts_as_it() -> None:
    env = Tag(3_000, agents=3)
    env.reset(0)
    counts = np.bincount(env._it, minlength=3)
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 13.8  # chi-square, 2 degrees, p = 0.001


def test_the_scripted_player_among_random_ones_is_hardly_ever_it() -> None:
    env = Tag(64)
    env.reset(0)
    generator = np.random.default_rng(0)
    players = {a.name: random_player(a, generator) for a in env.world.places}
    player = env.scripted()
    result = play(env, {**players, "agent_2": player}, episodes=64, seed=3)
    assert result["agent_2"][0] > 900
    others = [mean for name, (mean, _) in result.items() if name != "agent_2"]
    assert sum(others) + result["agent_2"][0] == pytest.approx(100 * 40)
