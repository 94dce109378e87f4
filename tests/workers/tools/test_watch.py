"""`rookery watch`: films, maps and characters of policies at play."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises, words_in
from workers.environments.base import Environment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.evaluation.scores import FILE
from workers.tools import evaluate as evaluation
from workers.tools import watch as module
from workers.tools.film import half_block_text, write_map

RANDOM = {"algorithm": {"name": "scripted", "entry": "random"}}


def run(folder: Path, environment: dict[str, Any], *agents: str) -> Path:
    """A run whose players are random, so that there are no weights to load."""
    data = {"environment": environment, "policies": dict.fromkeys(agents, RANDOM)}
    (folder / "config.yaml").write_text(yaml.safe_dump(data))
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module.torch_setup, "configure_torch", lambda: None)

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(module.main, [*map(str, arguments)])

    return call


@pytest.mark.parametrize("ending", ["gif", pytest.param("mp4", marks=pytest.mark.slow)])
def test_a_film_has_a_frame_for_each_turn_and_a_map_the_cells_that_were_visited(
    tmp_path: Path, command: Any, ending: str
) -> None:
    world = {"id": "treasure_hunt", "settings": {"width": 7, "height": 9, "turns": 6}, "copies": 4, "processes": 2}
    film, visited = tmp_path / f"film.{ending}", tmp_path / "visited.png"
    told = command(run(tmp_path, world, "agent_0", "agent_1"), "-o", film, "--heat-map", visited, "--episodes", 2)
    assert told.exit_code == 0, told.output
    frames = imageio.mimread(film)
    assert frames[0].shape[:2] == (9 * 8, 7 * 8)
    assert f"{film}: 25 turns" in told.output, "of two agents in two episodes; the last hears of its end a turn later"
    assert imageio.imread(visited).shape[2] == 4
    again = command(tmp_path, "-o", film, "--turns", 5)
    assert f"{film}: 5 turns" in again.output


def test_a_run_is_watched_live_episode_after_episode_with_other_seeds(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = {"id": "treasure_hunt", "settings": {"width": 7, "height": 7, "turns": 2}}
    seeds: list[int] = []
    before = module.play

    def played(folder: Path, episodes: int, seed: int, *rest: Any) -> Any:
        seeds.append(seed)
        if len(seeds) > 3:
            raise KeyboardInterrupt
        assert episodes == 1
        return before(folder, episodes, seed, *rest)

    monkeypatch.setattr(module, "play", played)
    monkeypatch.setattr(module, "_in_terminal", lambda: True)
    told = command(run(tmp_path, world, "agent_0", "agent_1"), "--live", "--fps", "1000")
    assert seeds == [0, 1, 2, 3]
    assert told.output.count("turn 1") >= 3


def test_gymnasiums_worlds_are_filmed_too(tmp_path: Path, command: Any) -> None:
    film = tmp_path / "film.gif"
    told = command(run(tmp_path, {"id": "gymnasium:Acrobot-v1"}, "agent"), "-o", film, "--turns", 3)
    assert told.exit_code == 0, told.output
    assert imageio.mimread(film)[0].shape[:2] == (500, 500)


DRAWN = """
import gymnasium
import numpy as np


class Drawn(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        return np.zeros((10, 20, 3), np.uint8) if self.render_mode == "rgb_array" else None


def make(render_mode=None):
    return Drawn(render_mode)
"""


def test_a_function_that_takes_a_render_mode_is_asked_for_pictures_and_trains_without(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"drawn_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(DRAWN)
    monkeypatch.syspath_prepend(tmp_path)
    film = tmp_path / "film.gif"
    told = command(run(tmp_path, {"id": f"{name}:make", "copies": 1}, "agent"), "-o", film, "--turns", 3)
    assert told.exit_code == 0, told.output
    assert imageio.mimread(film)[0].shape[:2] == (10, 20)


def test_what_cannot_be_shown_is_refused_with_the_remedy(tmp_path: Path, command: Any) -> None:
    folder = run(tmp_path, {"id": "memory", "copies": 4}, "agent_0")
    film = tmp_path / "film.gif"
    for arguments, kind in (
        ((), "no_terminal_to_show"),
        (("-o", tmp_path / "film.avi"), "film_format_unknown"),
        (("-o", film), "world_without_picture"),
        (("--heat-map", tmp_path / "map.png"), "world_is_no_grid"),
        (("-o", film, "--live"), "live_is_no_file"),
    ):
        assert kinds_in(command(folder, *arguments).output) == [kind]
    told = command(folder, "-o", film, "--environment", "x").output
    assert kinds_in(told) == ["environment_option_unknown"]
    assert {"'x'", "memory"} <= words_in(told)


@pytest.mark.parametrize("id", ["treasure_hunt", "tag", "cleanup", "rendezvous", "deep_sea", "foraging", "spread"])
def test_grid_worlds_tell_where_their_agents_are(id: str) -> None:
    environment: Environment = CheckedEnvironment(make(EnvironmentConfig(id=id, copies=2)))
    environment.reset(0)
    cells = environment.agent_cells(1)
    assert cells is not None
    assert 1 <= cells.sum() <= len(environment.world.agents) * environment.world.places[0].many
    environment.close()


DARK = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Dark:
    """Looks like a gymnasium.Env, and has nothing to look at."""

    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, seed=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, True, {}

    def close(self):
        pass


class Plain(Dark, gymnasium.Env):
    """Gymnasium's own render, which nobody implemented."""

    render = gymnasium.Env.render


class Silent(Dark):
    def render(self):
        return None


class Wordy(Dark):
    def render(self):
        return "a text"


class Many(Dark):
    possible_agents = agents = ["agent"]

    def observation_space(self, agent):
        return Dark.observation_space

    def action_space(self, agent):
        return Dark.action_space

    def reset(self, seed=None):
        return {"agent": np.zeros(2, np.float32)}, {}


def parallel_env():
    """As PettingZoo's modules have it, without `render_mode`."""
    return Many()
'''


@pytest.mark.parametrize("world", ["Dark", "Plain", "Silent", "Wordy", "Many", "pettingzoo"])
def test_a_world_without_a_picture_says_so_at_its_first_turn(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    name = f"dark_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(DARK)
    monkeypatch.syspath_prepend(tmp_path)
    id = f"pettingzoo:{name}" if world == "pettingzoo" else f"{name}:{world}"
    folder = run(tmp_path, {"id": id, "copies": 1}, "agent")
    told = command(folder, "-o", tmp_path / "film.gif")
    assert (told.exit_code, kinds_in(told.output)) == (2, ["world_without_picture"])
    environment = make(EnvironmentConfig(id=id, copies=1))
    environment.reset(0)
    with raises(ConfigurationError, "world_without_picture"):
        module.FrameRecorder(environment, film=False, shown=True, fps=1e9, most=9).look()


WANDERS = """
import os

import gymnasium
import numpy as np


def wander(place):
    if place in __name__:
        os.chdir("/")


class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        wander("constructor")

    def reset(self, seed=None):
        wander("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        wander("step")
        return np.zeros(2, np.float32), 0.0, True, False, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


wander("module")
"""


@pytest.mark.parametrize("place", ["module", "constructor", "reset", "step"])
def test_paths_of_a_command_begin_where_it_was_typed_wherever_the_world_goes(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    name = f"wanders_in_{place}"
    (tmp_path / f"{name}.py").write_text(WANDERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    run(tmp_path / "run", {"id": f"{name}:World", "copies": 1}, "agent")
    told = command("run", "-o", "film.gif")
    assert told.exit_code == 0, told.output
    assert Path.cwd() == Path("/")
    assert len(imageio.mimread(tmp_path / "film.gif")) > 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(evaluation.torch_setup, "configure_torch", lambda: None)
    scored = CliRunner().invoke(evaluation.main, ["run", "--episodes", "1", "--json"])
    assert scored.exit_code == 0, scored.output
    assert (tmp_path / "run" / FILE).exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name)
    told = command("run", "-o", "film.gif", "--policy", "agent=agent.safetensors")
    assert kinds_in(told.output) == ["policy_file_missing"]
    assert str(tmp_path / "agent.safetensors") in told.output


def test_two_points_are_one_character() -> None:
    picture = np.zeros((3, 2, 3), np.uint8)
    picture[0, 0], picture[1, 0] = (255, 0, 0), (0, 0, 255)
    upper, lower = half_block_text(picture).splitlines()
    assert upper.startswith("\x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀")
    assert lower.count("▀") == 2


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "picture_not_written", file=tmp_path / "map.abc"):
        write_map(tmp_path / "map.abc", np.ones((2, 2), np.int64))
