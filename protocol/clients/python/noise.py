"""A simulator of any world, to try a run before there is a real one: what its agents see is chance.

It takes the world that the actor tells it, drives its own loop with all agents at once, and ends episodes by chance;
each step earns 1.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from protocol.simulator.client import RunOver, Simulator
from protocol.spaces import Place
from protocol.spaces.gymnasium import to_gymnasium
from protocol.spaces.tree import space_of

STEPS = 50
"""Of an episode, on average."""


def seen(place: Place) -> Any:
    """An observation, at random."""
    return to_gymnasium(space_of(place.agent.observation)).sample()


def allowed(place: Place) -> Any:
    """Masks by which all is legal; None where there are none."""
    if place.masked is None:
        return None
    masks = {leaf.name.partition(".")[2]: [True] * leaf.space.shape[0] for leaf in place.masked.leaves}
    return masks if place.masked.nested else masks[""]


def main(endpoint: str | Path, name: str, episodes: int | None = None, keys: str = "") -> int:
    """Plays until the run is over, or so many episodes; how many steps that were."""
    chance, steps = random.Random(name), 0
    try:
        with Simulator(endpoint, name, keys=keys) as sim:
            places = {slot: place for place in sim.world.places for slot in place.slots}
            masks = {agent: allowed(place) for agent, place in places.items()}
            while episodes != 0:
                rewards: dict[str, float] = {}
                while not rewards or chance.random() > 1 / STEPS:
                    sim.act_all({agent: seen(place) for agent, place in places.items()}, rewards, masks)
                    rewards, steps = dict.fromkeys(places, 1.0), steps + 1
                sim.end_all(rewards)
                episodes = None if episodes is None else episodes - 1
    except RunOver:
        pass  # there will be no more actions
    return steps


if __name__ == "__main__":
    print(f"{sys.argv[2]}: {main(sys.argv[1], sys.argv[2])} steps")
