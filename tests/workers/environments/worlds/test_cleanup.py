"""The rules of cleanup: beams, apples and the river, on states set by hand and by what must hold in any run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.playing import play
from workers.environments.base import Turn
from workers.environments.worlds.cleanup import (
    AGENT,
    APPLE,
    CLEANING,
    PLANES,
    RIVER,
    SAND,
    TREE,
    WALL,
    WASTE,
    ZAPPING,
    Cleanup,
)

UP, DOWN, LEFT, RIGHT, CLEAN, ZAP = range(6)
STILL = {"waste_spawn": 0.0, "apple_spawn": 0.0, "initial_waste": 0.0}
GROUNDS = {"#": WALL, "~": RIVER, "%": WASTE, " ": SAND, "t": TREE, "o": APPLE}


def world(lines: list[str], ground: str = " ", copies: int = 2, **options: Any) -> Cleanup:
    """A world that looks like `lines` in every copy; digits are agents, which stand on `ground` and face up. Nothing
    changes by itself."""
    agents = sum(cell.isdigit() for line in lines for cell in line)
    size = {"height": len(lines), "width": len(lines[0]), "agents": agents}
    env = Cleanup(copies, **{**size, **STILL, "radius": 2, **options})
    env.reset(0)
    field = env._field
    margin = max(env.settings.radius, env.settings.beam) - 1
    for copy in range(copies):
        for y, line in enumerate(lines):
            for x, cell in enumerate(line):
                at = field.first[copy] + (y + margin) * field.stride + x + margin
                env._grid[at] = GROUNDS[ground] | AGENT if cell.isdigit() else GROUNDS[cell]
                if cell.isdigit():
                    env._position[int(cell), copy] = at
        env._waste[copy] = (env.contents(copy) & WASTE > 0).sum()
    env._facing.fill(UP)
    return env


def act(env: Cleanup, *actions: int) -> Turn:
    return env.step([np.full(env.copies, action) for action in actions])


def told(turn: Turn) -> list[float]:
    return [float(p.reward[0]) for p in turn.present]


BEACH = ["#######", "#~~~~~#", "#~~~~~#", "#~~~~~#", "#  0  #", "#     #", "#ttttt#", "#######"]


def test_the_map_is_river_above_sand_and_orchard_below_in_the_size_of_the_source() -> None:
    env = Cleanup(1, initial_waste=0.0, apple_spawn=0.0)
    env.reset(0)
    lines = env.render().replace("A", " ").splitlines()
    assert lines == [
        "#" * 31,
        *["#" + "~" * 29 + "#"] * 6,
        *["#" + " " * 9 + "~~" + " " * 18 + "#"] * 6,
        "#" + " " * 29 + "#",
        *["#" + "t" * 29 + "#"] * 6,
        "#" * 31,
    ]
    assert len(env.world.agents) == 10
    assert env.world.episode_steps == 1_000


@pytest.mark.parametrize(
    ("facing", "covered"),
    [
        (UP, ["       ", "   +   ", "  +++  ", "  +++  ", "  +A+  "]),
        (DOWN, ["       ", "  +A+  ", "  +++  ", "  +++  ", "   +   "]),
    ],
)
def test_a_beam_covers_three_ahead_and_three_on_either_side_from_beside_the_agent(
    facing: int, covered: list[str]
) -> None:
    lines = ["#########", *["#       #"] * 9, "#########"]
    lines[5] = "#   0   #"
    env = world(lines)
    env._facing.fill(facing)
    act(env, CLEAN)
    first = 1 if facing == UP else 4
    assert [line[1:-1] for line in env.render().splitlines()[first : first + 5]] == covered


@pytest.mark.parametrize(("facing", "columns"), [(LEFT, (1, 4)), (RIGHT, (4, 7))])
def test_a_beam_turns_with_the_agent(facing: int, columns: tuple[int, int]) -> None:
    env = world(["#########", *["#       #"] * 3, "#   0   #", *["#       #"] * 3, "#########"])
    env._facing.fill(facing)
    act(env, CLEAN)
    rows, columns_hit = np.nonzero(env.contents(0) & CLEANING)
    assert (rows.min(), rows.max()) == (3, 5)
    assert (columns_hit.min(), columns_hit.max()) == columns
    assert rows.size == 9


def test_cleaning_turns_the_waste_in_the_beam_into_river_and_nothing_else() -> None:
    dirty = [line.replace("~", "%") for line in BEACH]
    env = world(dirty)
    turn = act(env, CLEAN)
    assert told(turn) == [0]
    contents = env.contents(0)
    # Ahead all three rows, on the sides only two: the beam begins there on the agent's own row, which is sand.
    assert ((contents & RIVER) > 0)[1:4, 1:6].astype(int).tolist() == [
        [0, 0, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 1, 1, 1, 0],
    ]
    assert env._waste.tolist() == [8, 8]
    assert (contents & WASTE > 0).sum() == 8


def test_a_zap_cleans_nothing() -> None:
    env = world([line.replace("~", "%") for line in BEACH])
    act(env, ZAP)
    assert env._waste.tolist() == [15, 15]
    assert (env.contents(0) & WASTE > 0).sum() == 15


def test_a_zap_costs_every_other_agent_in_it_once_and_nobody_out_of_it() -> None:
    lines = ["#######", "#     #", "#4 2 5#", "#  1  #", "# 30  #", "#     #", "#     #", "#######"]
    env = world(lines, turn_mode="simultaneous", zapping=-0.25)
    turn = act(env, ZAP, *[CLEAN] * 5)
    assert told(turn) == [-0.25, -1, -1, -1, 0, 0]
    turn = act(env, ZAP, ZAP, *[CLEAN] * 4)
    assert told(turn) == [-0.25, -1.25, -2, -1, 0, 0], "agent 1 hits agent 2 as well; agent 3 stands behind it"


def test_beams_are_seen_until_the_first_agent_of_the_next_turn_acts() -> None:
    env = world(["########", *["#      #"] * 4, "#0  1  #", *["#      #"] * 3, "########"])
    second = act(env, CLEAN).present[0].observation[0]
    assert second[PLANES.index("cleaning")].sum() == 3, "of the beam, the column next to the first agent is in view"
    first = act(env, ZAP).present[0].observation[0]
    assert first[PLANES.index("cleaning")].sum() > 0
    assert first[PLANES.index("zapping")].sum() > 0
    second = act(env, UP).present[0].observation[0]
    assert not second[[PLANES.index("cleaning"), PLANES.index("zapping")]].any()


def test_moving_turns_the_agent_even_where_the_way_is_blocked() -> None:
    env = world(["######", "#0   #", "#    #", "#    #", "#    #", "######"])
    for action, ahead in ((LEFT, (2, 1)), (UP, (1, 2)), (CLEAN, (1, 2))):
        view = act(env, action).present[0].observation[0]
        assert env.contents(0)[1, 1] & AGENT
        assert np.argwhere(view[PLANES.index("ahead")]).tolist() == [list(ahead)]
    view = act(env, DOWN).present[0].observation[0]
    assert np.argwhere(view[PLANES.index("ahead")]).tolist() == [[3, 2]]
    assert env.contents(0)[2, 1] & AGENT


def test_an_apple_is_eaten_by_stepping_on_it_and_leaves_its_tree() -> None:
    env = world(["######", "#0o  #", "#    #", "#    #", "#    #", "######"])
    assert told(act(env, RIGHT)) == [1]
    assert told(act(env, RIGHT)) == [0]
    assert env.render().splitlines()[1] == "# tA #"


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_D3_of_two_agents_that_race_for_one_apple_exactly_one_eats_it(turn_mode: Any) -> None:
    env = world(["######", "#0o1 #", "#    #", "#    #", "#    #", "######"], turn_mode=turn_mode)
    if turn_mode == "sequential":
        act(env, RIGHT)
        act(env, LEFT)
    else:
        act(env, RIGHT, LEFT)
    assert env._reward.tolist() == [[1, 1], [0, 0]]
    assert env.render().splitlines()[1] == "# AA #"


def test_D2_the_second_agent_sees_the_apple_gone_that_the_first_ate() -> None:
    env = world(["######", "#0o1 #", "#    #", "#    #", "#    #", "######"])
    turn = act(env, RIGHT)
    (second,) = turn.present
    assert second.agent == 1
    view = second.observation[0]
    assert view[PLANES.index("apple")].sum() == 0
    assert view[PLANES.index("tree"), 2, 1] == view[PLANES.index("agent"), 2, 1] == 1


def test_an_observation_has_one_ground_a_cell_walls_beyond_the_border_and_not_oneself() -> None:
    env = Cleanup(8, turns=30)
    turn = env.reset(0)
    generator = np.random.default_rng(0)
    for _ in range(100):
        for p in turn.present:
            assert p.observation.shape == (8, 10, 11, 11)
            assert (p.observation[:, :6].sum(axis=1) == 1).all()
            assert not p.observation[:, PLANES.index("agent"), 5, 5].any()
            assert (p.observation[:, PLANES.index("ahead")].sum(axis=(1, 2)) == 1).all()
        turn = env.step([generator.integers(6, size=8) for _ in turn.present])


@pytest.mark.parametrize(("dirt", "share"), [(0.0, 1.0), (0.2, 0.5), (0.4, 0.0)])
def test_apples_grow_by_the_published_law_of_the_rivers_dirt(dirt: float, share: float) -> None:
    env = Cleanup(400, initial_waste=dirt, waste_spawn=0.0, agents=1)
    apples, trees = 0, 0
    for seed in range(5):
        env.reset(seed)
        codes = env._grid.reshape(400, -1)[:, env._orchard]
        apples += int((codes == APPLE).sum())
        trees += codes.size
    exact = 0.05 * (1 - np.ceil(dirt * env._river.size) / env._river.size / 0.4) if share else 0.0
    assert exact == pytest.approx(0.05 * share, abs=0.001)
    assert abs(apples - trees * exact) <= 4 * np.sqrt(trees * exact)


def test_no_apple_grows_where_an_agent_stands() -> None:
    env = world(["######", "#ttt #", "#t0t #", "#ttt #", "#    #", "######"], ground="t", apple_spawn=1.0)
    env._orchard = np.flatnonzero(env._grid[: env._field.plane] & TREE)
    env._seeded()
    act(env, UP)
    assert [line[1:4] for line in env.render().splitlines()[1:4]] == ["oAo", "ooo", "ooo"], "where it was, one may grow"
    assert env.contents(0)[1, 2] == TREE | AGENT


@pytest.mark.parametrize(("dirt", "rate"), [(0.3, 0.5), (0.4, 0.0)])
def test_one_clean_cell_a_turn_is_polluted_with_the_published_probability_until_depletion(
    dirt: float, rate: float
) -> None:
    env = Cleanup(2_000, initial_waste=dirt, agents=1)
    env.reset(0)
    fresh = int(np.ceil(dirt * env._river.size))
    grown = env._waste - fresh
    assert set(np.unique(grown)) <= {0, 1}
    assert abs(grown.sum() - 2_000 * rate) <= 4 * np.sqrt(2_000 * rate)


def test_every_clean_cell_is_polluted_as_likely_as_any_other() -> None:
    env = Cleanup(20_000, initial_waste=0.0, waste_spawn=1.0, height=6, width=8, agents=1, depletion=0.9)
    env.reset(0)
    counts = (env._grid.reshape(20_000, -1)[:, env._river] & WASTE > 0).sum(axis=0)
    expected = 20_000 / env._river.size
    assert counts.sum() == 20_000
    assert ((counts - expected) ** 2 / expected).sum() < env._river.size + 4 * np.sqrt(2 * env._river.size)


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_river_trees_sand_walls_and_agents_are_conserved_and_waste_is_counted_right(turn_mode: Any) -> None:
    env = Cleanup(8, turn_mode, turns=40, initial_waste=0.2, height=15, width=15)
    generator = np.random.default_rng(0)
    turn = env.reset(0)
    for step in range(300 if turn_mode == "sequential" else 90):
        turn = env.step([generator.integers(6, size=8) for _ in turn.present])
        if step % 7:
            continue
        grid = env._grid.reshape(8, -1)
        assert ((grid[:, env._river] & (RIVER | WASTE)) > 0).all()
        assert ((grid[:, env._orchard] & (TREE | APPLE)) > 0).all()
        assert ((grid[:, env._sand] & SAND) > 0).all()
        assert (((grid & WASTE) > 0).sum(axis=1) == env._waste).all()
        assert (((grid & AGENT) > 0).sum(axis=1) == 10).all()
        assert ((env._grid[env._position] & AGENT) > 0).all()
        ground = grid & (SAND | WALL | RIVER | WASTE | TREE | APPLE)
        assert ((ground & (ground - np.uint16(1))) == 0).all(), "one kind of ground a cell"
        assert not (grid & (ZAPPING | CLEANING))[grid & WALL > 0].any()


def test_without_cleaners_nobody_eats_and_with_them_the_pickers_do() -> None:
    """The dilemma: the river starts too dirty for apples, and cleaning is left to those who earn little by it."""
    env = Cleanup(3, turns=400)
    env.reset(0)
    player = env.scripted()
    names = [agent.name for agent in env.world.agents]

    def pick(present: Any) -> Any:
        action = player(present)
        return np.where(action == CLEAN, UP, action)

    alone = play(env, dict.fromkeys(names, pick), 3, seed=0)
    assert all(mean == 0 for mean, _ in alone.values())
    together = [mean for mean, _ in play(env, dict.fromkeys(names, player), 3, seed=0).values()]
    assert min(together[1::2]) > 100
    assert max(together[::2]) < 0.2 * min(together[1::2])


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        ({"restoration": 0.5}, "restoration_not_below_depletion", {"field": "restoration", "value": 0.5, "limit": 0.4}),
        ({"height": 6, "width": 5, "agents": 20}, "agents_exceed_sand_cells", {"field": "agents", "count": 20}),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_sentence(settings: Any, kind: str, facts: Any) -> None:
    with raises(ConfigurationError, kind, environment="cleanup", key=f"environment.settings.{facts['field']}", **facts):
        Cleanup(1, **settings)
