"""A cart with a pole, as a simulator of its own: python protocol/clients/python/cartpole.py ENDPOINT NAME.

It drives its own loop and asks the actor at ENDPOINT (tcp://HOST:PORT, or the folder of a run) for actions. The physics
are those of Barto, Sutton and Anderson (1983), as Gymnasium's CartPole-v1 has them.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

from protocol.simulator.client import RunOver, Simulator

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MOST_STEPS, FARTHEST, STEEPEST = 500, 2.4, 12 * math.pi / 180


class CartPoleSimulator:
    """One cart: `state` is position, speed, angle of the pole and its speed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.state = [0.0] * 4
        self.steps = 0

    def reset(self) -> list[float]:
        """Near the middle, nearly upright."""
        self.state = [self._random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return self.state

    def step(self, push_right: bool) -> tuple[bool, bool]:
        """Whether it fell or left, and whether its time is up."""
        _, speed, angle, spin = self.state
        total, moment = CART + POLE, POLE * HALF_LENGTH
        force = FORCE if push_right else -FORCE
        shared = (force + moment * spin**2 * math.sin(angle)) / total
        turning = GRAVITY * math.sin(angle) - math.cos(angle) * shared
        turning /= HALF_LENGTH * (4 / 3 - POLE * math.cos(angle) ** 2 / total)
        pushing = shared - moment * turning * math.cos(angle) / total
        change = (speed, pushing, spin, turning)
        self.state = [value + SECONDS * rate for value, rate in zip(self.state, change, strict=True)]
        self.steps += 1
        fell = abs(self.state[0]) > FARTHEST or abs(self.state[2]) > STEEPEST
        return fell, not fell and self.steps >= MOST_STEPS


def main(endpoint: str | Path, name: str, episodes: int | None = None, keys: str = "") -> int:
    """Plays until the run is over, or so many episodes; how many steps that were."""
    cart, steps = CartPoleSimulator(name), 0
    try:
        with Simulator(endpoint, name, keys=keys) as sim:
            while episodes != 0:
                cart.reset()
                reward, fell, late = 0.0, False, False
                while not (fell or late):
                    action = sim.act(cart.state, reward, clock=cart.steps * SECONDS)
                    fell, late = cart.step(push_right=action == 1)
                    reward, steps = 1.0, steps + 1
                sim.end_episode(reward, truncated=late, observation=cart.state, info={"fell": fell})
                episodes = None if episodes is None else episodes - 1
    except RunOver:
        pass  # there will be no more actions
    return steps


if __name__ == "__main__":
    print(f"{sys.argv[2]}: {main(sys.argv[1], sys.argv[2])} steps")
