"""A world with agents of every kind: its text is a module beside the configuration of a run."""

WORLD = '''
import numpy as np

from protocol.spaces import (
    Action, Agent, ArrayPopulation, Box, Component, Dict, DictPopulation, Discrete, MultiDiscrete, Observation, World
)
from workers.environments.base import Environment, AgentOutcome, AgentTimeStep, Turn

EYES = Observation(components={
    "camera": Component(space=Box(shape=(2, 3), dtype="uint8")),
    "gear": Component(space=Discrete(n=3, start=1)),
    "truth": Component(space=Box(shape=(2,)), evaluation_only=True),
})
HANDS = Dict(spaces={"move": Discrete(n=3, start=-1), "force": Box(shape=(2,), low=-1.0, high=3.0)})
TREE = DictPopulation(agents=(
    Agent(name="rover", observation=EYES, action=Action(space=HANDS, atomic=False), action_mask=True),
    Agent(name="arm", observation=Box(shape=(3,)), action=Box(shape=(2,), low=-1.0, high=1.0)),
    Agent(name="dial", observation=MultiDiscrete(nvec=(2, 4)), action=MultiDiscrete(nvec=(2, 2))),
    Agent(name="picker", observation=Box(shape=(2,)), action=Discrete(n=3, start=4), action_mask=True),
    ArrayPopulation(name="herd", template=Agent(name="cow", observation=Box(shape=(2,)), action=Discrete(n=2)),
                    capacity=3),
))
EPISODE = 10


class AnySpace(Environment):
    """All are there at each turn but every other cow, which comes and goes. Episodes are cut after 10 turns. The arm
    earns what it pushes, the rover and the picker 1 for the only move that is legal."""

    def __init__(self, copies):
        self.copies = copies
        self.world = World(id="any_space", population=TREE, episode_steps=EPISODE)
        self._rng = np.random.default_rng(0)

    def reset(self, seed):
        self._rng = np.random.default_rng(seed)
        self._t = 0
        self._acted = [np.zeros(self.copies * place.many, bool) for place in self.world.places]
        self._legal = {}
        return self._turn([np.zeros(self.copies * place.many, np.float32) for place in self.world.places])

    def step(self, actions):
        names = ("rover", "arm", "dial", "picker", "herd.cow")
        rover, arm, dial, picker, cow = (self.world.place(name) for name in names)
        rewards = [np.zeros(self.copies * place.many, np.float32) for place in self.world.places]
        rows = {p.agent: p.copies for p in self._told.present}
        for index, action in zip(rows, actions):
            place = self.world.places[index]
            where = slice(None) if rows[index] is None else rows[index]
            assert action.dtype == place.acted.dtype, (place.name, action.dtype)
            if place is rover:
                assert (action["move"] == self._legal["rover"] - 1).all()
                assert action["force"].min() >= -1 and action["force"].max() <= 3
                rewards[index][where] = 1
            elif place is picker:
                assert (action == self._legal["picker"] + 4).all()
                rewards[index][where] = 1
            elif place is arm:
                assert action.shape == (self.copies, 2) and abs(action).max() <= 1
                rewards[index][where] = action.sum(1)
            elif place is dial:
                rewards[index][where] = action.sum(1)
            else:
                rewards[index][where] = action
        self._t += 1
        return self._turn(rewards)

    def _turn(self, rewards):
        ended = self._t > 0 and self._t % EPISODE == 0
        present, outcomes = [], []
        for index, place in enumerate(self.world.places):
            n = self.copies * place.many
            here = np.ones(n, bool)
            if place.many > 1:
                here = (np.arange(n) + self._t) % 2 == 0
            acted = self._acted[index]
            told = np.flatnonzero(here)
            one = self._rows(AgentTimeStep, place, index, told, rewards[index], ended & acted[told])
            one.observation = self._seen(place, len(told))
            if place.masked is not None:
                legal = self._legal[place.name] = self._rng.integers(0, 3, n)
                one.action_mask = place.masked.zeros(n)
                mask = one.action_mask["move"] if one.action_mask.dtype.names else one.action_mask
                mask[np.arange(n), legal] = True
            if here.all():
                one.copies = None
            present.append(one)
            away = np.flatnonzero(~here & acted)
            if len(away):
                outcomes.append(self._rows(AgentOutcome, place, index, away, rewards[index], ended & acted[away]))
            self._acted[index] = here if ended else self._acted[index] | here  # whose last action waits for its end
        self._told = Turn(tuple(present), self.copies if self._t else 0, tuple(outcomes))
        return self._told

    def _rows(self, kind, place, index, rows, rewards, cut):
        cut = np.broadcast_to(cut, (len(rows),)).copy()
        told = dict(agent=index, reward=rewards[rows], terminated=np.zeros(len(rows), bool), truncated=cut, copies=rows)
        if cut.any():
            told.update(final_index=np.flatnonzero(cut), final_observation=self._seen(place, int(cut.sum())))
        if kind is AgentTimeStep:
            told["observation"] = self._seen(place, len(rows))
        return kind(**told)

    def _seen(self, place, n):
        rows = place.observed.zeros(n)
        for leaf, part in place.observed.parts(rows):
            part[...] = self._rng.integers(0, 2, part.shape) + getattr(leaf.space, "start", 0)
        return rows


def make(copies):
    return AnySpace(copies)
'''
