"""A gridworld written as Sorrel's are, knowing nothing of us: entities on a map, agents with pov, act and is_done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

SIDE = 3
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)]


class Entity:
    kind, value, has_transitions = 0.0, 0.0, False

    def transition(self, world: World) -> None:
        raise AssertionError("has none")


class Soil(Entity):
    """Grows a gem now and then."""

    has_transitions = True

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place

    def transition(self, world: World) -> None:
        world.log.append("soil")
        if world.chance.random() < world.growth:
            world.map[self.place] = Gem()


class Gem(Entity):
    kind, value = 1.0, 5.0


class World:
    def __init__(self, seed: int, growth: float) -> None:
        self.chance, self.growth = np.random.default_rng(seed), growth
        self.log: list[str] = []
        self.create_world()

    def create_world(self) -> None:
        self.total_reward, self.is_done = 0.0, False
        self.map = np.empty((SIDE, SIDE), object)
        for place in np.ndindex(SIDE, SIDE):
            self.map[place] = Soil(place)


class Mover(Entity):
    """Sees kinds of cells and a clock, as (1, F)."""

    kind, has_transitions = 2.0, True

    def __init__(self, place: tuple[int, int], leaves: bool) -> None:
        self.action_spec = SimpleNamespace(n_actions=len(MOVES))
        self.home, self.leaves = place, leaves
        self.reset()

    def reset(self) -> None:
        self.place, self.found = self.home, 0.0

    def pov(self, world: World) -> Any:
        kinds = [entity.kind for entity in world.map.flat]
        return np.array([[*kinds, float(len(world.log))]])

    def act(self, world: World, action: int) -> float:
        world.log.append(f"act {action}")
        target = tuple(int(x) for x in np.clip(np.add(self.place, MOVES[action]), 0, SIDE - 1))
        there = world.map[target]
        if isinstance(there, Mover):
            return 0.0 if there is self else -1.0
        world.map[self.place], world.map[target] = Soil(self.place), self
        self.place = target  # type: ignore[assignment]
        self.found += there.value
        return there.value

    def is_done(self, world: World) -> bool:
        return self.leaves and self.found >= 10

    def transition(self, world: World) -> None:
        raise AssertionError("agents act when they are told to")


class Environment:
    """Two agents in opposite corners."""

    def __init__(
        self, seed: int = 0, max_turns: int = 7, growth: float = 0.2, leaves: bool = False, stops: bool = False
    ) -> None:
        self.config = SimpleNamespace(experiment=SimpleNamespace(max_turns=max_turns))
        self.world, self.turn, self.stop_if_done, self.stops = World(seed, growth), 0, stops, stops
        self.agents = [Mover((0, 0), leaves), Mover((SIDE - 1, SIDE - 1), leaves)]
        self.populate_environment()

    def populate_environment(self) -> None:
        for agent in self.agents:
            self.world.map[agent.home] = agent

    def reset(self) -> None:
        self.turn = 0
        self.world.create_world()
        for agent in self.agents:
            agent.reset()
        self.populate_environment()


def make(**settings: Any) -> Environment:
    return Environment(**settings)
