"""The rules of the treasure hunt, on states set by hand and against a slow reference of the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.worlds.treasure_hunt import AGENT, BONE, EMPTY, FOOD, GEM, WALL, TreasureHunt

UP, DOWN, LEFT, RIGHT = range(4)
VALUES = {EMPTY: 0, WALL: -1, GEM: 10, FOOD: 5, BONE: -10, AGENT: 0}


def world(rows: list[str], copies: int = 1, **options: Any) -> TreasureHunt:
    """A world that looks like `rows` (`1`, `2` ... are agents) in every copy and where nothing appears by itself."""
    agents = sum(cell.isdigit() for row in rows for cell in row)
    options = {"spawn": 0.0, "turns": 100, **options}
    env = TreasureHunt(copies, height=len(rows), width=len(rows[0]), agents=agents, **options)
    env.reset(0)
    arrange(env, rows)
    return env


def arrange(env: TreasureHunt, rows: list[str]) -> None:
    """Sets all copies of `env` to look like `rows`."""
    margin = env.settings.radius - 1
    for copy in range(env.copies):
        first = copy * env._ground.plane
        for y, row in enumerate(rows):
            for x, cell in enumerate(row):
                at = first + (y + margin) * env._ground.stride + x + margin
                env._grid[at] = AGENT if cell.isdigit() else " #*ox".index(cell)
                if cell.isdigit():
                    env._position[int(cell) - 1, copy] = at


def act(env: TreasureHunt, *actions: int) -> Turn:
    """One step in which the agents present act, the same in all copies."""
    return env.step([np.full(env.copies, action) for action in actions])


def empty(height: int = 5, width: int = 7) -> list[str]:
    return ["#" * width, *(["#" + " " * (width - 2) + "#"] * (height - 2)), "#" * width]


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_D3_of_two_agents_that_race_for_one_thing_exactly_one_collects_it(turn_mode: Any) -> None:
    env = world(["#####", "#1*2#", "#####"], turn_mode=turn_mode)
    if turn_mode == "sequential":
        second = act(env, RIGHT).present[0]
        assert second.agent == 1
        first = act(env, LEFT).present[0]
        rewards = [float(first.reward[0]), float(env._reward[1, 0])]
    else:
        rewards = [float(p.reward[0]) for p in act(env, RIGHT, LEFT).present]
    assert rewards == [10, 0]
    assert env.render() == "#####\n# AA#\n#####"


def test_D2_the_second_agent_sees_the_world_after_the_first_acted() -> None:
    env = world(["#####", "#1*2#", "#####"])
    turn = act(env, RIGHT)
    (second,) = turn.present
    assert second.agent == 1
    assert turn.env_steps == 0
    view = second.observation[0]
    assert view[GEM].sum() == 0, "the gem is taken already"
    assert view[AGENT, 2, 1] == 1, "the first agent stands where the gem was"


def test_D4_simultaneous_agents_all_see_the_world_before_anyone_acts() -> None:
    env = world(["######", "#1* 2#", "######"], turn_mode="simultaneous")
    turn = act(env, UP, UP)
    assert [p.agent for p in turn.present] == [0, 1]
    assert turn.env_steps == env.copies
    assert turn.present[0].observation[0, GEM, 2, 3] == 1
    assert turn.present[1].observation[0, GEM, 2, 0] == 1


def test_D1_entities_change_before_the_first_agent_of_a_turn_and_not_between_agents() -> None:
    env = TreasureHunt(3, height=6, width=6, spawn=1.0, turns=4)
    turn = env.reset(0)
    for _ in range(20):
        for agent in range(2):
            assert turn.present[0].agent == agent
            free = [(env.contents(copy) == EMPTY).sum() for copy in range(3)]
            if agent == 0:
                assert free == [0, 0, 0], "every empty cell changed before the first agent saw it"
                view = turn.present[0].observation
                middle = np.zeros((5, 5), np.bool_)
                middle[2, 2] = True
                assert not view[:, EMPTY][:, ~middle].any()
            else:
                assert free == [1, 1, 1], "the cell that the first agent left stays empty until the next turn"
            moves = [_free_move(env, agent, copy) for copy in range(3)]
            turn = env.step([np.array(moves)])


def _free_move(env: TreasureHunt, agent: int, copy: int) -> int:
    met = [env._grid[env._position[agent, copy] + move] for move in env._ground.moves]
    return next(i for i, code in enumerate(met) if code not in (WALL, AGENT))


def test_an_observation_shows_one_plane_a_cell_with_walls_beyond_the_border() -> None:
    env = world(["#####", "#1*o#", "#x 2#", "#####"])
    view = env.reset(0).present[0].observation
    arrange(env, ["#####", "#1*o#", "#x 2#", "#####"])
    view = env._present()[0].observation
    assert view.shape == (1, 6, 5, 5)
    assert view.dtype == np.uint8
    assert (view.sum(axis=1) == 1).all()
    seen = view[0].argmax(axis=0)
    w = WALL
    assert seen.tolist() == [
        [w, w, w, w, w],
        [w, w, w, w, w],
        [w, w, EMPTY, GEM, FOOD],
        [w, w, BONE, EMPTY, AGENT],
        [w, w, w, w, w],
    ]


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_an_episode_is_truncated_at_its_time_limit_for_each_agent_after_its_own_last_move(turn_mode: Any) -> None:
    env = TreasureHunt(4, turn_mode, turns=10, height=7, width=7, spawn=0.2)
    generator = np.random.default_rng(0)
    turn = env.reset(5)
    ends: dict[int, list[int]] = {0: [], 1: []}
    steps = 60 if turn_mode == "sequential" else 30
    for step in range(1, steps + 1):
        turn = env.step([generator.integers(4, size=4) for _ in turn.present])
        for present in turn.present:
            assert not present.terminated.any()
            assert present.truncated.all() == present.truncated.any()
            if present.truncated.any():
                ends[present.agent].append(step)
                assert present.final_index.tolist() == [0, 1, 2, 3]
                assert present.final_observation is not None
                assert not np.array_equal(present.final_observation, present.observation)
            else:
                assert present.final_index.size == 0
                assert present.final_observation is None
    # One after another: the first agent hears of the end with the last move, the second when it is its turn again.
    assert ends == ({0: [20, 40, 60], 1: [21, 41]} if turn_mode == "sequential" else {0: [10, 20, 30], 1: [10, 20, 30]})


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_the_final_observation_shows_the_old_episode_after_the_last_move(turn_mode: Any) -> None:
    rows = ["######", "#1 *2#", "######"]
    env = world(rows, turn_mode=turn_mode, turns=1)
    finals = {}
    if turn_mode == "sequential":
        act(env, RIGHT)
        turn = act(env, LEFT)
        finals[0] = turn.present[0]
        assert turn.present[0].truncated.all()
        turn = act(env, UP)
        finals[1] = turn.present[0]
        assert turn.present[0].truncated.all()
        assert finals[1].reward == 10
    else:
        turn = act(env, RIGHT, LEFT)
        finals = {present.agent: present for present in turn.present}
        assert [float(p.reward[0]) for p in turn.present] == [0, 10]
    first = env._final[0][0]
    assert first[AGENT, 2, 3] == 1, "the other agent has come next to the first"
    assert first[GEM].sum() == 0
    assert finals[1].final_observation is not None
    assert finals[1].final_observation[0, AGENT, 2, 1] == 1


def test_an_episode_has_one_hundred_turns_if_nothing_else_is_said() -> None:
    assert TreasureHunt(1).world.episode_steps == 100


def test_a_new_episode_starts_empty_with_agents_on_distinct_cells() -> None:
    env = TreasureHunt(50, height=5, width=5, agents=9, spawn=0.0, turns=3, turn_mode="simultaneous")
    env.reset(0)
    for _ in range(12):
        assert all((env.contents(copy) == AGENT).sum() == 9 for copy in range(50))
        act(env, *[UP] * 9)


def test_start_cells_are_uniform() -> None:
    env = TreasureHunt(20_000, height=5, width=6, agents=3, spawn=0.0)
    env.reset(0)
    for agent in range(3):
        cells = env._position[agent] - env._ground.first
        counts = np.unique(cells, return_counts=True)[1]
        assert counts.size == 12
        expected = env.copies / 12
        assert ((counts - expected) ** 2 / expected).sum() < 31.3  # chi-square, 11 degrees, p = 0.001


def test_treasures_appear_at_the_configured_rate_in_equal_kinds() -> None:
    env = TreasureHunt(200, spawn=0.005, turns=1)
    appeared = np.zeros(3)
    for seed in range(40):
        env.reset(seed)
        codes = np.concatenate([env.contents(copy).ravel() for copy in range(200)])
        appeared += [(codes == kind).sum() for kind in (GEM, FOOD, BONE)]
    cells = 40 * 200 * (19 * 19 - 2)
    assert abs(appeared.sum() - cells * 0.005) < 4 * np.sqrt(cells * 0.005)
    assert ((appeared - appeared.mean()) ** 2 / appeared.mean()).sum() < 13.8


def test_the_same_seed_gives_the_same_trajectory_whatever_was_before_and_another_seed_another() -> None:
    def trajectory(env: TreasureHunt, seed: int) -> list[bytes]:
        generator = np.random.default_rng(1)
        turn = env.reset(seed)
        rows = []
        for _ in range(61):
            present = turn.present[0]
            rows.append(present.observation.tobytes() + present.reward.tobytes() + present.truncated.tobytes())
            turn = env.step([generator.integers(4, size=8)])
        return rows

    env, fresh = (TreasureHunt(8, turns=7, spawn=0.05, desynchronize=True) for _ in range(2))
    first = trajectory(env, 3)
    assert trajectory(env, 3) == trajectory(fresh, 3) == first
    assert trajectory(env, 4) != first


def test_desynchronized_copies_end_their_first_episode_at_times_spread_over_its_length() -> None:
    env = TreasureHunt(2_000, turns=10, height=4, width=4, agents=1, spawn=0.0, desynchronize=True)
    env.reset(0)
    ends = np.array([act(env, UP).present[0].truncated.copy() for _ in range(20)])
    first = ends.argmax(axis=0) + 1
    counts = np.bincount(first, minlength=11)[1:]
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # chi-square, 9 degrees, p = 0.001
    later = [np.flatnonzero(column)[1] - np.flatnonzero(column)[0] for column in ends.T if column.sum() > 1]
    assert set(later) == {10}, "every later episode has its full length"
    rows = env._present()[0]
    assert rows.final_index.tolist() == np.flatnonzero(rows.truncated).tolist()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spawn=st.sampled_from([0.0, 0.05, 0.4]),
    turn_mode=st.sampled_from(["sequential", "simultaneous"]),
    agents=st.integers(1, 4),
)
def test_D3_rewards_and_grids_follow_the_rules_of_a_slow_reference(
    seed: int, spawn: float, turn_mode: Any, agents: int
) -> None:
    env = TreasureHunt(3, turn_mode, height=6, width=7, agents=agents, spawn=spawn, turns=9)
    generator = np.random.default_rng(seed)
    turn = env.reset(seed)
    total, collected = 0.0, 0.0
    for _ in range(9 * agents if turn_mode == "sequential" else 9):
        grids = [env.contents(copy) for copy in range(3)]
        places = [[_place(env, agent, copy) for agent in range(agents)] for copy in range(3)]
        acting = [present.agent for present in turn.present]
        actions = [generator.integers(4, size=3) for _ in acting]
        turn = env.step(actions)
        for copy in range(3):
            for agent, action in zip(acting, actions, strict=True):
                y, x = places[copy][agent]
                dy, dx = [(-1, 0), (1, 0), (0, -1), (0, 1)][action[copy]]
                met = int(grids[copy][y + dy, x + dx])
                earned = (env._reward if turn.env_steps else env._earned)[agent, copy]
                assert earned == VALUES[met]
                total += float(earned)
                collected += VALUES[met]
                if met not in (WALL, AGENT):
                    grids[copy][y, x], grids[copy][y + dy, x + dx] = EMPTY, AGENT
                    places[copy][agent] = (y + dy, x + dx)
            if turn.present[0].truncated.any():
                continue  # a new episode is shown already
            now = env.contents(copy)
            changed = now != grids[copy]
            assert (grids[copy][changed] == EMPTY).all(), "only empty cells change by themselves"
            assert np.isin(now[changed], (GEM, FOOD, BONE)).all()
            if turn.env_steps == 0:
                assert not changed.any(), "nothing changes between two agents of a turn"
    assert total == collected


def _place(env: TreasureHunt, agent: int, copy: int) -> tuple[int, int]:
    margin = env.settings.radius - 1
    y, x = divmod(int(env._position[agent, copy] - env._ground.first[copy]), env._ground.stride)
    return y - margin, x - margin


@pytest.mark.parametrize(
    ("wrong", "kind", "key"),
    [
        ({"hight": 5}, "unknown_environment_setting", ".hight"),
        ({"height": 3, "width": 3, "agents": 2}, "agents_exceed_cells_within_wall", ".agents"),
        ({"gem": float("nan")}, "environment_setting_invalid", ".gem"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_sentence(wrong: dict[str, Any], kind: str, key: str) -> None:
    facts = {"environment": "treasure_hunt", "key": f"environment.settings{key}"}
    with raises(ConfigurationError, kind, **facts) as caught:
        TreasureHunt(2, **wrong)
    assert "\n" not in str(caught.value)


def test_renderers_show_every_kind_of_thing() -> None:
    rows = ["#####", "#1*o#", "#x  #", "#####"]
    env = world(rows)
    assert env.render() == "\n".join(rows).replace("1", "A")
    picture = env.render_rgb(scale=3)
    assert picture.shape == (12, 15, 3)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 6
    assert (picture[:3, :3] == picture[0, 0]).all()


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_the_map_shows_all_agents_the_whole_grid_as_it_is_when_they_act_J9(turn_mode: Any) -> None:
    """And, where an episode is cut, as it was at its end: with agents moved and nothing of the next one in it."""
    env = CheckedEnvironment(TreasureHunt(3, turn_mode, height=6, width=7, agents=2, turns=4, spawn=0.2, map=True))
    inner = env._inner
    assert isinstance(inner, TreasureHunt)
    assert env.world.action_period == (2 if turn_mode == "sequential" else 1)
    turn, cut = env.reset(3), 0
    for step in range(40):
        assert turn.common is not None
        np.testing.assert_array_equal(turn.common, [inner.contents(copy) for copy in range(3)])
        for present in turn.present:
            cut += len(present.final_index)
            if len(present.final_index):
                assert present.final_common is not None
                assert (present.final_common == AGENT).sum((1, 2)).tolist() == [2] * len(present.final_index)
                assert present.final_observation is not None
                own = present.final_observation[:, :, 2, 2]
                assert own[:, EMPTY].all()
                # whoever stands in view of the agent stands on the map as well
                assert (present.final_observation[:, AGENT].sum((1, 2)) <= 1).all()
        turn = env.step([np.full(3, (step + present.agent) % 4) for present in turn.present])
    assert cut >= 24
    assert TreasureHunt(2, height=6, width=7).reset(0).common is None
