"""Rendezvous: bodies move as they should, everybody is paid alike, and observations tell what there is."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import EnvironmentFault
from tests.faults import raises
from tests.playing import baselines
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.worlds.rendezvous import DRAG, REACH, THRUST, TOP, Rendezvous


def test_a_thrust_adds_to_what_drag_leaves_of_the_velocity_and_a_wall_stops_the_body() -> None:
    env = Rendezvous(2, agents=2, touch=0.0)
    env.reset(0)
    env._position[:], env._velocity[:] = 0, 0
    env._position[1] = 0.95
    position, velocity = np.zeros(2), np.zeros(2)
    for turn in range(6):
        thrust = np.array([1, -0.5]) if turn < 3 else np.array([0, 0.25])
        env.step([np.tile(thrust, (2, 1)).astype(np.float32), np.ones((2, 2), np.float32)])
        velocity = DRAG * velocity + THRUST * thrust
        position = position + velocity
        assert np.allclose(env._position[0], position, atol=1e-6)
        assert np.allclose(env._velocity[0], velocity, atol=1e-6)
    assert (env._position[1] == 1).all()
    assert not env._velocity[1].any(), "a wall takes the speed"


def test_everybody_is_paid_the_same_minus_the_mean_distance_and_what_touching_costs() -> None:
    env = Rendezvous(50, agents=4, touch=2.0)
    turn = env.reset(3)
    generator, touched = np.random.default_rng(0), 0
    for _ in range(30):
        turn = env.step([generator.uniform(-1, 1, (50, 2)).astype(np.float32) for _ in turn.present])
        far = np.linalg.norm(env._place - env._position, axis=-1).mean(axis=0)
        pairs = sum(
            np.linalg.norm(env._position[i] - env._position[j], axis=-1) < REACH for i in range(4) for j in range(i)
        )
        touched += int(pairs.sum())
        for p in turn.present:
            assert np.allclose(p.reward, -far - 2 * pairs, atol=1e-5)
    assert touched
    assert env.world.teams == {"": tuple(f"agent_{i}" for i in range(4))}


def test_an_agent_sees_its_velocity_its_way_and_the_others_around_by_number() -> None:
    env = Rendezvous(3, agents=3)
    turn = env.reset(1)
    generator = np.random.default_rng(0)
    for _ in range(4):
        turn = env.step([generator.uniform(-1, 1, (3, 2)).astype(np.float32) for _ in turn.present])
    at, speed = env._position, env._velocity / TOP
    for p in turn.present:
        i = p.agent
        expected = [speed[i], env._place[i] - at[i]]
        for other in ((i + 1) % 3, (i + 2) % 3):
            expected += [at[other] - at[i], speed[other]]
        assert np.allclose(p.observation, np.concatenate(expected, axis=1), atol=1e-6)


def test_places_stand_around_a_point_and_inside_the_walls_out_of_each_others_reach() -> None:
    env = Rendezvous(500, agents=8)
    env.reset(0)
    assert (np.abs(env._place) <= 1).all()
    one, other = np.triu_indices(8, 1)
    assert (np.linalg.norm(env._place[one] - env._place[other], axis=-1) > REACH).all()
    centre = env._place.mean(axis=0)
    assert np.allclose(np.linalg.norm(env._place - centre, axis=-1), 0.3, atol=1e-5)
    assert centre.std() > 0.3, "the meeting point is anywhere"


@pytest.mark.parametrize("thrust", [1.5, np.nan])
def test_a_thrust_outside_its_bounds_is_refused_in_one_sentence(thrust: float) -> None:
    env = CheckedEnvironment(Rendezvous(2))
    turn = env.reset(0)
    chosen = [np.zeros((2, 2), np.float32) for _ in turn.present]
    chosen[1][1, 0] = thrust
    with raises(EnvironmentFault, "action_invalid", environment="rendezvous", agent="agent_1", field="action"):
        env.step(chosen)


def test_random_and_scripted_players_earn_the_known_figures() -> None:
    known = baselines(EnvironmentConfig(id="rendezvous", copies=256), 1024, seed=0)
    for one in known.values():
        assert abs(one["random"] + 49.9) < 1.5
        assert abs(one["scripted"] + 4.08) < 0.15, "nobody can do better than -3.68, braking or not"
    assert len({one["scripted"] for one in known.values()}) == 1, "the payoff is shared"
