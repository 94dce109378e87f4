"""How fast worlds step with random actions on one core, observations included; run by `make bench`.

Beside each figure stands the time of one step in units of one copy of its observations in memory, measured in the same
run: that ratio compares machines of different speed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.spaces import Place
from workers.environments.base import AgentTimeStep, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make

WORLDS = (
    EnvironmentConfig(id="treasure_hunt", copies=256),
    EnvironmentConfig(id="treasure_hunt", copies=256, turn_mode="simultaneous"),
    EnvironmentConfig(id="cleanup", copies=64),
    EnvironmentConfig(id="cleanup", copies=64, turn_mode="simultaneous"),
    EnvironmentConfig(id="tag", copies=256),
    EnvironmentConfig(id="tag", copies=256, turn_mode="simultaneous"),
    EnvironmentConfig(id="matrix_game", copies=256),
    EnvironmentConfig(id="memory", copies=256),
    EnvironmentConfig(id="deep_sea", copies=256),
    EnvironmentConfig(id="weather", copies=256),
    EnvironmentConfig(id="rendezvous", copies=256),
    EnvironmentConfig(id="foraging", copies=256),
    EnvironmentConfig(id="spread", copies=256),
    EnvironmentConfig(id="synthetic", copies=256),
    EnvironmentConfig(id="synthetic", copies=2720, settings={"many": 3}),
    EnvironmentConfig(id="gymnasium:CartPole-v1", copies=256),
    EnvironmentConfig(id="gymnasium:MountainCar-v0", copies=16),
    EnvironmentConfig(id="pettingzoo:mpe2.simple_spread_v3", copies=16),
)


def drawn(place: Place, copies: int, generator: np.random.Generator) -> list[NDArray[Any]]:
    """Random actions of an agent that is everywhere, for 64 turns."""
    n = copies * place.many
    everybody = AgentTimeStep(
        0, place.observed.zeros(n), np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    )
    player = random_player(place, generator)
    return [player(everybody) for _ in range(64)]


def measure(config: EnvironmentConfig, seconds: float) -> tuple[float, float]:
    """(agent steps/s, time of a step over the time of copying its observations)."""
    environment = CheckedEnvironment(make(config))
    generator = np.random.default_rng(0)
    turn = environment.reset(0)
    choices = {agent: drawn(place, config.copies, generator) for agent, place in enumerate(environment.world.places)}
    steps = rows = 0
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        turn = environment.step([choices[present.agent][steps % 64] for present in turn.present])
        steps += 1
        rows += sum(len(present.observation) for present in turn.present)
    copies = [present.observation.copy() for present in turn.present]
    start = time.perf_counter()
    for _ in range(1_000):
        for present, copy in zip(turn.present, copies, strict=True):
            np.copyto(copy, present.observation)
    reference = (time.perf_counter() - start) / 1_000
    environment.close()
    return rows / took, took / steps / reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each world")
    seconds = parser.parse_args().seconds
    print(f"{'world':36} {'turns':12} {'copies':>6} {'agent steps/s':>14} {'step / copy of its observations':>32}")
    for config in WORLDS:
        rate, ratio = measure(config, seconds)
        print(f"{config.id:36} {config.turn_mode or 'own way':12} {config.copies:6} {rate:14,.0f} {ratio:32,.1f}")


if __name__ == "__main__":
    main()
