"""Games of the Atari 2600 by ale-py, which steps E of them by one call, as they are usually learned (Mnih et al. 2015).

In flow: actions [E]. Out flow: for every four frames a small grey picture, the greater of the last two. A life that is
lost terminates, though the game goes on; rewards are signs. What a game brought in all is told as `score` at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.errors import ConfigurationError
from protocol.errors.packages import missing_module, not_installed
from workers.environments.base import WorldSettings, parse_settings
from workers.environments.known_ids import is_meant, nearest


class AtariSettings(WorldSettings):
    """Of `atari:GAME`, named as in Gymnasium's AtariPreprocessing and in ale-py."""

    noop_max: int = Field(default=30, ge=0)
    """A game begins with fewer steps of doing nothing than that; 0: with none."""
    frame_skip: int = Field(default=4, ge=1)
    screen_size: int = Field(default=84, ge=1)
    grayscale_obs: bool = True
    terminal_on_life_loss: bool = True
    reward_clip: bool = True
    repeat_action_probability: float = Field(default=0.0, ge=0, le=1)
    full_action_space: bool = False
    max_num_frames_per_episode: int = Field(default=108_000, ge=1)
    num_threads: int = Field(default=1, ge=1)
    """That step the copies; more of them take cores from the learner."""


WHOLE = {"terminal_on_life_loss": False, "reward_clip": False}
"""Settings with which a game is measured: to its end, by its own rewards."""


class AtariVector:
    """`atari:GAME` as a `gymnasium.vector.VectorEnv`; ConfigurationError for a game or settings that there are not."""

    def __init__(self, id: str, copies: int, settings: Mapping[str, Any]) -> None:
        self._set = chosen = parse_settings(id, AtariSettings, settings)
        try:
            from ale_py.registration import rom_id_to_name
            from ale_py.roms import get_all_rom_ids
            from ale_py.vector_env import AtariVectorEnv
            from gymnasium.spaces import Box
            from gymnasium.vector import AutoresetMode
        except ImportError as fault:
            raise not_installed(id, missing_module(fault) or "ale_py") from fault
        name = id.partition(":")[2]
        games = {rom_id_to_name(rom): rom for rom in get_all_rom_ids()}
        if name not in games:
            hint = is_meant([f"atari:{one}" for one in nearest(name, {game: game for game in games})])
            raise ConfigurationError("atari_game_unknown", value=name, hint=hint, key="environment.id")
        self._games = AtariVectorEnv(
            games[name],
            copies,
            autoreset_mode=AutoresetMode.SAME_STEP,
            num_threads=chosen.num_threads,
            img_height=chosen.screen_size,
            img_width=chosen.screen_size,
            stack_num=1,
            frameskip=chosen.frame_skip,
            grayscale=chosen.grayscale_obs,
            noop_max=chosen.noop_max,
            reward_clipping=False,
            use_fire_reset=False,
            repeat_action_probability=chosen.repeat_action_probability,
            full_action_space=chosen.full_action_space,
            max_num_frames_per_episode=2**31 - 1,  # it looks no more at the last frame before it cuts a game
        )
        self.num_envs, self.metadata = copies, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._limit = -(-chosen.max_num_frames_per_episode // chosen.frame_skip)
        self.spec = SimpleNamespace(max_episode_steps=self._limit)
        colours = () if chosen.grayscale_obs else (3,)
        self.single_observation_space = Box(0, 255, (chosen.screen_size, chosen.screen_size, *colours), np.uint8)
        self.single_action_space = self._games.single_action_space
        self._lives, self._steps = np.zeros(copies, np.int32), np.zeros(copies, np.int64)
        self._score = np.zeros(copies)
        self._seen = np.zeros((copies, *self.single_observation_space.shape), np.uint8)

    def reset(self, seed: int) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """New games in all copies, seeded by the numbers from `seed` on."""
        seen, info = self._games.reset(seed=seed % (2**31 - self.num_envs))
        self._seen, self._lives = seen[:, 0], info["lives"]
        self._score[:], self._steps[:] = 0, 0
        return self._seen, {}

    def step(self, actions: NDArray[np.int64]) -> tuple[Any, ...]:
        """`final_info` tells the score where a game is over, and nothing of a life."""
        seen, reward, over, _, info = self._games.step(actions)
        self._steps += 1
        self._score += reward
        lost, cut = (info["lives"] < self._lives) & ~over, (self._steps >= self._limit) & ~over
        ended, told = over | cut, dict[str, Any]()
        if ended.any():
            told = {"final_info": {"score": self._score.copy(), "_score": ended}}
            self._score[ended], self._steps[ended] = 0, 0
        if cut.any():
            told |= {"final_obs": seen[:, 0], "_final_obs": cut}
            seen, info = self._games.reset(options={"reset_mask": cut})
        self._seen, self._lives = seen[:, 0], info["lives"]
        terminated = over | lost if self._set.terminal_on_life_loss else over
        return self._seen, np.sign(reward) if self._set.reward_clip else reward, terminated, cut, told

    def render(self) -> list[NDArray[np.uint8]]:
        """What is seen, in colours of which grey has three alike."""
        return [one if one.ndim == 3 else np.repeat(one[..., None], 3, 2) for one in self._seen]

    def close(self) -> None:
        """Ends the threads that play."""
        self._games.close()
