"""`atari:GAME`: lives, scores and clipped rewards of games that are made up, and, by night, real ones frame by frame as
Gymnasium's own preprocessing shows them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.tools import skip_or_fail
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.evaluation.episodes import evaluation_config

E = 3


class Games:
    """Every step brings 7 in copy 0, -7 in 1 and 2 in 2; a game has three lives of two steps each, of
    which copy c has lost c at first."""

    single_action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, game: str, copies: int, **how: Any) -> None:
        assert (game, how["stack_num"], how["frameskip"], how["reward_clipping"]) == ("ms_pacman", 1, 4, False)
        self._step = np.zeros(copies, np.int64)

    def _lives(self) -> Any:
        return (3 - self._step // 2).astype(np.int32)

    def _seen(self) -> Any:
        return np.broadcast_to(self._step.astype(np.uint8)[:, None, None, None], (len(self._step), 1, 84, 84)).copy()

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        assert options or (seed is not None and 0 <= seed < 2**31 - len(self._step))
        if options:
            self._step[options["reset_mask"]] = 0
        else:
            self._step[:] = 2 * np.arange(len(self._step))
        return self._seen(), {"lives": self._lives()}

    def step(self, actions: Any) -> Any:
        self._step += 1
        over = self._step == 6
        self._step[over] = 0
        return self._seen(), np.array([7, -7, 2], np.int32)[: len(over)], over, over & False, {"lives": self._lives()}

    def close(self) -> None: ...


@pytest.fixture
def pacman(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, dict[str, Any]] = {
        "": {},
        ".roms": {"get_all_rom_ids": lambda: ["ms_pacman", "pong"]},
        ".registration": {"rom_id_to_name": lambda rom: rom.title().replace("_", "")},
        ".vector_env": {"AtariVectorEnv": Games},
    }
    for name, held in parts.items():
        module = ModuleType(f"ale_py{name}")
        module.__dict__.update(held)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def played(steps: int, **settings: Any) -> Any:
    """The environment, and the turns that it made."""
    config = EnvironmentConfig(id="atari:MsPacman", copies=E, settings=settings)
    environment = CheckedEnvironment(make(config))
    environment.reset(2**40)
    turns = [environment.step([np.zeros(E, np.int64)]).present[0] for _ in range(steps)]
    return environment, [(one.reward.tolist(), one.terminated.tolist(), one.observation[0, 0, 0]) for one in turns]


@pytest.mark.usefixtures("pacman")
def test_a_lost_life_terminates_while_the_game_goes_on_and_its_score_is_told_at_its_end() -> None:
    environment, turns = played(12)
    assert environment.world.episode_steps == 27_000
    for number, (reward, terminated, seen) in enumerate(turns, start=1):
        assert (reward, seen) == ([1, -1, 1], number % 6)
        assert terminated == [number % 2 == 0] * E
    assert environment.take_episodes() == {("info/score", 0): (6, 12 * 7 - 10 * 7 + 8 * 2)}
    picture = environment.render_rgb(1)
    assert picture is not None
    assert picture.tolist()[0][0] == [2, 2, 2]


@pytest.mark.usefixtures("pacman")
def test_an_evaluation_plays_whole_games_for_what_they_pay() -> None:
    plain = EnvironmentConfig(id="atari:MsPacman", copies=E)
    _, turns = played(12, **evaluation_config(plain, E).settings)
    assert [terminated[0] for _, terminated, _ in turns] == [number % 6 == 0 for number in range(1, 13)]
    assert {tuple(reward) for reward, _, _ in turns} == {(7, -7, 2)}


@pytest.mark.usefixtures("pacman")
def test_a_game_that_is_cut_is_truncated_with_what_was_seen_last() -> None:
    config = EnvironmentConfig(id="atari:MsPacman", copies=1, settings={"max_num_frames_per_episode": 20})
    environment = CheckedEnvironment(make(config))
    environment.reset(0)
    for number in range(1, 11):
        (one,) = environment.step([np.zeros(1, np.int64)]).present
        assert one.truncated.tolist() == [number % 5 == 0]
        if number % 5 == 0:
            assert one.final_index.tolist() == [0]
            assert one.final_observation is not None
            assert (one.final_observation == 5).all()
            assert (one.observation == 0).all()


@pytest.mark.usefixtures("pacman")
@pytest.mark.parametrize(
    ("id", "settings", "kind", "key"),
    [
        ("atari:ms_pacman", {}, "atari_game_unknown", "environment.id"),
        ("atari:Pong", {"frame_skip": 0}, "environment_setting_invalid", "environment.settings.frame_skip"),
        ("atari:Pong", {"frameskip": 4}, "unknown_environment_setting", "environment.settings.frameskip"),
    ],
)
def test_a_game_or_setting_that_there_is_not_is_refused(id: str, settings: Any, kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, key=key):
        make(EnvironmentConfig(id=id, copies=E, settings=settings))


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with raises(ConfigurationError, "package_missing", package="ale-py", key="environment.id"):
        make(EnvironmentConfig(id="atari:Pong"))


class Drawn:
    """What AtariPreprocessing draws how often a game does nothing at first from: so often."""

    def __init__(self, times: int) -> None:
        self.times = times

    def integers(self, *_: int) -> int:
        return self.times


def reference(game: str, steps: int) -> Any:
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, ClipReward, TimeLimit

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return ClipReward(TimeLimit(AtariPreprocessing(env), steps), -1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("game", "turns", "limit"), [("Pong", 1_750, 850), ("Breakout", 1_000, 100)])
def test_a_game_is_played_frame_by_frame_as_by_gymnasiums_preprocessing(
    game: str, turns: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 steps or more in ten copies, games that are over, lives that are lost and games that are cut."""
    if find_spec("ale_py") is None or find_spec("cv2") is None:
        skip_or_fail("a game of `make returns` is not installed", "ale-py")
    from ale_py.vector_env import AtariVectorEnv

    idle: list[Any] = []

    def noting(inner: Any) -> Any:
        def told(*given: Any, **how: Any) -> Any:
            answer = inner(*given, **how)
            idle.append(answer[-1]["episode_frame_number"])
            return answer

        return told

    monkeypatch.setattr(AtariVectorEnv, "reset", noting(AtariVectorEnv.reset))
    monkeypatch.setattr(AtariVectorEnv, "step", noting(AtariVectorEnv.step))
    config = EnvironmentConfig(id=f"atari:{game}", copies=10, settings={"max_num_frames_per_episode": 4 * limit})
    environment = CheckedEnvironment(make(config))
    place, plain = environment.world.agents[0], [reference(game, limit) for _ in range(10)]
    lives, ends = [0] * 10, {"lost": 0, "over": 0, "cut": 0}

    def begun(copy: int) -> Any:
        plain[copy].unwrapped._np_random = Drawn(int(idle[-1][copy]))
        seen, info = plain[copy].reset()
        lives[copy] = info["lives"]
        return seen

    (one,), generator = environment.reset(3).present, np.random.default_rng(0)
    assert len({int(times) for times in idle[-1]}) > 5
    for copy in range(10):
        np.testing.assert_array_equal(one.observation[copy], begun(copy))
    for _ in range(turns):
        actions = generator.integers(place.action.n, size=10)
        (one,) = environment.step([actions]).present
        for copy, env in enumerate(plain):
            seen, reward, over, cut, info = env.step(actions[copy])
            lost = info["lives"] < lives[copy]
            ended = reward, over or lost, cut and not (over or lost)
            assert (one.reward[copy], one.terminated[copy], one.truncated[copy]) == ended
            lives[copy] = info["lives"]
            for name, happened in (("lost", lost and not over), ("over", over), ("cut", cut and not over)):
                ends[name] += bool(happened)
            if ended[2]:
                assert one.final_observation is not None
                row = one.final_index.tolist().index(copy)
                np.testing.assert_array_equal(one.final_observation[row], seen)
            if over or cut:
                seen = begun(copy)
            np.testing.assert_array_equal(one.observation[copy], seen)
    assert sum(ends.values()) >= 20, ends
    assert all(ends[name] for name in ("cut", "lost" if game == "Breakout" else "over")), ends
    (told_of,) = environment.take_episodes().values()
    assert told_of[0] == ends["over"] + ends["cut"]
