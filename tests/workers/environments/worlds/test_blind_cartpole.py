"""CartPole without velocities is CartPole in everything else."""

from __future__ import annotations

import numpy as np

from protocol.config.run import EnvironmentConfig
from workers.environments.registry import make

ID = "workers.environments.worlds.blind_cartpole:BlindCartPole"


def test_its_rows_are_those_of_cartpole_without_velocities() -> None:
    blind = make(EnvironmentConfig(id=ID, copies=5))
    whole = make(EnvironmentConfig(id="gymnasium:CartPole-v1", copies=5))
    assert blind.world.episode_steps == whole.world.episode_steps == 500
    told, seen = blind.reset(3), whole.reset(3)
    ends = 0
    for step in range(700):
        (one,), (other,) = told.present, seen.present
        np.testing.assert_array_equal(one.observation, other.observation[:, [0, 2]])
        for name in ("reward", "terminated", "truncated", "final_index"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert (one.final_observation is None) == (other.final_observation is None)
        if one.final_observation is not None and other.final_observation is not None:
            np.testing.assert_array_equal(one.final_observation, other.final_observation[:, [0, 2]])
        ends += int(one.terminated.sum())
        # a hand that balances for a while, in some copies only
        angle = other.observation[:, 2] + other.observation[:, 3]
        actions = [np.where(np.arange(5) < 4, angle > 0, step % 3 == 0).astype(np.int64)]
        told, seen = blind.step(actions), whole.step(actions)
    assert ends
    blind.close()
    whole.close()
