"""Weather: what is earned is luck and what the sign said; the luck is for learners alone, and sums to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from tests.playing import baselines
from workers.environments.worlds.weather import Weather
from workers.policies.interface import Interface


@pytest.mark.parametrize("turn_mode", ["sequential", "simultaneous"])
def test_a_right_action_brings_1_and_the_weather_of_the_episode_the_rest(turn_mode: Any) -> None:
    env = Weather(40, turn_mode, signs=3, turns=4, luck=20.0, agents=2)
    turn = env.reset(1)
    for _ in range(3):
        sky = env._weather.copy()
        assert sorted(sky) == [-1] * 20 + [1] * 20
        for step in range(4):
            right = np.arange(40) % 3 == step % 3
            for _ in range(2 if turn_mode == "sequential" else 1):
                for p in turn.present:
                    seen = p.observation["sign"]
                    assert (seen[:, :3].argmax(axis=1) == env._sign[p.agent]).all()
                    np.testing.assert_allclose(seen.sum(axis=1), 1 + (4 - step) / 4)
                    assert (p.observation["weather"][:, 0] == sky).all()
                signs = [env._sign[p.agent].copy() for p in turn.present]
                turn = env.step([np.where(right, sign, (sign + 1) % 3) for sign in signs])
            np.testing.assert_array_equal(env._reward, [right + 20 * sky] * 2)
            assert env._done.all() == env._done.any() == (step == 3)


def test_only_learners_see_the_weather_I2() -> None:
    world = Weather(4).world
    interface = Interface.at(world, world.places[0])
    assert [part.column for part in interface.observation_encoding.parts] == ["observation.sign"]
    assert interface.privileged is not None
    assert [part.column for part in interface.privileged.parts] == ["observation.weather"]


def test_the_scripted_player_earns_one_a_turn_whatever_the_weather() -> None:
    known = baselines(EnvironmentConfig(id="weather", copies=64, settings={"turns": 3}), 128, 0)["agent_0"]
    assert known["scripted"] == pytest.approx(3)
    assert known["random"] == pytest.approx(0.75, abs=0.25)


def test_it_is_drawn_in_a_line() -> None:
    env = Weather(2, agents=2)
    env.reset(0)
    assert {env.render(0).split(",")[0], env.render(1).split(",")[0]} == {"good weather", "bad weather"}
    assert env.render(0).endswith(f"sign {env._sign[0, 0]}, sign {env._sign[1, 0]}")
