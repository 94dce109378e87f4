"""The scripted player of the treasure hunt, on views set by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.workers.environments.worlds.test_treasure_hunt import DOWN, LEFT, RIGHT, UP, arrange, world


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["#######", "#     #", "#  1 *#", "#     #", "#######"], RIGHT),
        (["#######", "#     #", "#* 1 o#", "#     #", "#######"], LEFT),
        (["#######", "#     #", "# o1 *#", "#     #", "#######"], RIGHT),
        (["#######", "#  *  #", "#* 1  #", "#     #", "#######"], UP),
        (["#######", "#     #", "#x 1  #", "# o   #", "#######"], DOWN),
    ],
)
def test_it_steps_towards_the_best_and_then_the_nearest_thing(rows: list[str], expected: int) -> None:
    env = world(rows, copies=4)
    player = env.scripted()
    assert player(env._present()[0]).tolist() == [expected] * 4


def test_with_nothing_in_view_it_keeps_its_heading_until_a_wall_is_ahead() -> None:
    env = world(["#" * 30, "#" + "1" + " " * 27 + "#", "#" * 30], copies=64)
    player = env.scripted()
    (present,) = env._present()
    bumps = 0
    for _ in range(90):
        (present,) = env.step([player(present)]).present
        bumps += int((present.reward < 0).sum())
    columns = env._position[0] - env._ground.first
    assert len(np.unique(columns)) > 3
    # Three of four directions are walled in here: it may bump while it seeks a way, never while it walks one.
    assert bumps < 64 * 90 / 2


def test_it_does_not_step_on_a_bone_as_long_as_chance_offers_another_way() -> None:
    env = world(["#####", "#   #", "#1x*#", "#   #", "#####"], copies=400)
    player = env.scripted()
    actions = player(env._present()[0])
    assert (actions == RIGHT).mean() < 0.4, "the straight way leads over the bone, so a random step is taken"


def test_it_plays_from_copies_that_are_present_alone() -> None:
    env = world(["#####", "#1 *#", "#####"], copies=6)
    player = env.scripted()
    (present,) = env._present()
    present.copies = np.array([1, 4])
    present.observation = present.observation[[1, 4]]
    assert player(present).tolist() == [RIGHT, RIGHT]


def test_a_world_without_anything_worth_having_is_walked_through_all_the_same() -> None:
    env = world(["######", "#1*o #", "######"], gem=0.0, food=-1.0)
    arrange(env, ["######", "#1*o #", "######"])
    assert env.scripted()(env._present()[0]).shape == (1,)
