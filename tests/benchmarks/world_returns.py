"""What random and scripted players earn in the built-in worlds: the figures of
launch/docs/environments/built-in.md.

Means over agents of a whole episode's return. Where a world's payoff is shared out (tag), a scripted player is also put
among random ones, since all of them together always earn the same.
"""

from __future__ import annotations

import argparse

import numpy as np

from protocol.config.run import EnvironmentConfig
from tests.playing import baselines, play
from workers.environments.base import random_player
from workers.environments.registry import make

WORLDS = (
    EnvironmentConfig(id="treasure_hunt"),
    EnvironmentConfig(id="cleanup"),
    EnvironmentConfig(id="tag"),
    EnvironmentConfig(id="matrix_game", settings={"game": "climbing"}),
    EnvironmentConfig(id="matrix_game", settings={"game": "penalty"}),
    EnvironmentConfig(id="matrix_game", settings={"game": "penalty", "k": -100.0}),
    EnvironmentConfig(id="matrix_game", settings={"game": "prisoners_dilemma"}),
    EnvironmentConfig(id="matrix_game", settings={"game": "chicken"}),
    EnvironmentConfig(id="matrix_game", settings={"game": "stag_hunt"}),
    EnvironmentConfig(id="memory"),
    EnvironmentConfig(id="deep_sea"),
    EnvironmentConfig(id="rendezvous"),
    EnvironmentConfig(id="spread"),
    EnvironmentConfig(id="synthetic"),
    EnvironmentConfig(id="weather"),
)


def one_among_random(config: EnvironmentConfig, episodes: int, seed: int) -> float:
    """Mean return of the first agent, scripted, where all others play at random."""
    environment = make(config)
    environment.reset(seed)
    agents = environment.world.places
    players = {a.name: random_player(a, g) for a, g in zip(agents, np.random.default_rng(seed).spawn(99), strict=False)}
    scripted = environment.scripted()
    assert scripted is not None
    result = play(environment, players | {agents[0].name: scripted}, episodes, seed)[agents[0].name][0]
    environment.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64, help="episodes of each world and kind of player")
    episodes = parser.parse_args().episodes
    print(f"{'world':48} {'random':>9} {'+-':>6} {'scripted':>9} {'+-':>6} {'one scripted among random':>26}")
    for config in WORLDS:
        known = list(baselines(config, episodes, seed=0).values())
        keys = ("random", "random_stderr", "scripted", "scripted_stderr")
        random, error, scripted, scripted_error = (float(np.mean([agent[key] for agent in known])) for key in keys)
        name = " ".join([config.id, *(f"{key}={value}" for key, value in config.settings.items())])
        alone = one_among_random(config, episodes, seed=0)
        print(f"{name:48} {random:9.2f} {error:6.2f} {scripted:9.2f} {scripted_error:6.2f} {alone:26.2f}", flush=True)


if __name__ == "__main__":
    main()
