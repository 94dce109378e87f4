"""Members that know what they paid, a collection of them, and a ledger of what a collection tells of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box as GymBox
from numpy.typing import NDArray

from protocol.config.environment import EnvironmentConfig
from protocol.spaces import Agent, ArrayPopulation, Box, Discrete, World
from tests.workers.environments.adapters.random_games import InTurns, Row, Together
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.collections import Collection
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode

APART = 10_000
"""Between the times at which two random games begin: no observation of one is like one of another."""


class Paying(FixedLengthWorld):
    """Agent k earns `pay` * (k + 1) for each action of an episode of `turns`; it sees (pay, episode, turn, k)."""

    def __init__(self, pay: float, turns: int, turn_mode: TurnMode, copies: int = 1, terminates: bool = False) -> None:
        seen = Box(shape=(4,))
        agents = tuple(Agent(name=f"agent_{k}", observation=seen, action=Discrete(n=2)) for k in range(3))
        world = World(id=f"paying {pay:g}", agents=agents, episode_steps=turns)
        super().__init__(world, copies, turn_mode, turns, terminates=terminates)
        self.pay, self.episode = pay, np.zeros(copies)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        self.episode[copies] += 1

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        self._earned[agent] += self.pay * (agent + 1)

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        which = np.arange(self.copies) if copies is None else copies
        shown = np.zeros((len(which), 4))
        shown[:, 0], shown[:, 1], shown[:, 2], shown[:, 3] = self.pay, self.episode[which], self._left[which], agent
        out[: len(which)] = shown


class _Numbered:
    """A random game whose observations are (its number, t), and whose chance goes on from the seed of its reset."""

    seen_space = GymBox(-np.inf, np.inf, (2,), np.float32)
    number = 0.0
    time: float

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.chance = np.random.default_rng(seed)
        return super().reset(seed, options)  # type: ignore[misc]

    def _shown(self) -> Any:
        return np.array([self.number, self.time], np.float32)


class NumberedTurns(_Numbered, InTurns):
    def observe(self, agent: str) -> Any:
        return self._shown()


class NumberedTogether(_Numbered, Together):
    def observe(self) -> Any:
        return self._shown()


class Crowd(Environment):
    """A varying crowd: each of up to 3 walkers lives for a number of steps, then is replaced or not; the last to go
    ends the episode. A walker sees (pay, steps it has made), common to all is (pay, crowd). Each step pays `pay`."""

    def __init__(self, pay: float) -> None:
        walker = Agent(name="walker", observation=Box(shape=(2,)), action=Discrete(n=2))
        population = ArrayPopulation(template=walker, capacity=3, common=Box(shape=(2,)))
        self.world = World(id=f"crowd {pay:g}", population=population)
        self.copies, self.pay = 1, pay
        self.chance = np.random.default_rng(0)
        self.age: NDArray[np.int64] = np.full(3, -1)
        """[3]: steps made; -1 for nobody."""

    def reset(self, seed: int) -> Turn:
        self.chance = np.random.default_rng(seed)
        self._begin()
        here = self.age >= 0
        return self._turn(here, np.zeros(3, np.bool_), np.zeros(3, np.bool_), None, None)

    def _begin(self) -> None:
        self.age[:] = np.where(self.chance.random(3) < 0.6, 0, -1)
        self.age[self.chance.integers(3)] = 0

    def step(self, actions: Sequence[NDArray]) -> Turn:
        acted = self.age >= 0
        assert len(actions[0]) == acted.sum()
        self.age[acted] += 1
        dies = acted & (self.chance.random(3) < 0.3)
        cut = dies & (self.chance.random(3) < 0.5)
        seen, common = self._seen(np.flatnonzero(cut)), self._common().repeat(int(cut.sum()), axis=0)
        self.age[dies] = -1
        born = (self.age < 0) & ~acted & (self.chance.random(3) < 0.2) & bool((self.age >= 0).any())
        self.age[born] = 0
        if not (self.age >= 0).any():
            self._begin()
        return self._turn(acted, dies & ~cut, cut, seen, common, steps=1)

    def _turn(
        self,
        acted: NDArray[np.bool_],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        seen: NDArray | None,
        common: NDArray | None,
        steps: int = 0,
    ) -> Turn:
        reward = (self.pay * acted * bool(steps)).astype(np.float32)
        cut = np.flatnonzero(truncated)

        def news(which: NDArray[np.int64]) -> tuple[Any, ...]:
            kept = np.isin(cut, which)
            last = seen[kept] if seen is not None and kept.any() else None
            shared = common[kept] if common is not None and kept.any() else None
            index = np.flatnonzero(truncated[which])
            return reward[which], terminated[which], truncated[which], index, last, shared

        here, away = np.flatnonzero(self.age >= 0), np.flatnonzero(acted & (self.age < 0))
        earned, died, timed_out, *finals = news(here)
        everyone = None if len(here) == 3 else here
        present = AgentTimeStep(0, self._seen(here), earned, died, timed_out, everyone, *finals)
        outcomes = (AgentOutcome(0, away, *news(away)),) if len(away) else ()
        return Turn((present,), steps, outcomes, common=self._common())

    def _seen(self, which: NDArray[np.int64]) -> NDArray:
        return np.stack([np.full(len(which), self.pay), self.age[which]], axis=1).astype(np.float32)

    def _common(self) -> NDArray:
        return np.array([[self.pay, (self.age >= 0).sum()]], np.float32)


def collection(
    members: Mapping[str, Callable[[], Environment]], copies: int = 1, **structure: Any
) -> tuple[Collection, dict[str, int]]:
    """A collection of what the functions make, by ID, and how many were made of each."""
    made = dict.fromkeys(members, 0)

    def make(config: EnvironmentConfig) -> Environment:
        made[config.id] += 1
        return members[config.id]()

    config = EnvironmentConfig.model_validate(
        {"copies": copies, "members": {name: {"id": name} for name in members}, **structure}
    )
    return Collection(config, make), made


class Ledger:
    """Plays an environment with actions t mod `actions` (t: the last number seen), and writes down every row."""

    def __init__(self, environment: Environment, actions: int = 2) -> None:
        self.environment, self.actions = CheckedEnvironment(environment), actions
        self.rows: dict[tuple[int, int], list[tuple[NDArray, Row]]] = {}
        """(agent, row of all copies) -> (what was seen, what that led to), of all closed rows in their order."""
        self.open: dict[tuple[int, int], tuple[NDArray, Row]] = {}
        self.finals: list[tuple[NDArray, NDArray]] = []
        """(seen before the last action, final observation) of what was truncated."""
        self.env_steps = 0

    def play(self, turns: int, seed: int = 0) -> Ledger:
        self.turn = self.environment.reset(seed)
        self._enter(self.turn)
        for _ in range(turns):
            chosen = [
                (present.observation.reshape(len(present.reward), -1)[:, -1] % self.actions).astype(np.int64)
                for present in self.turn.present
            ]
            self.turn = self.environment.step(chosen)
            self.env_steps += self.turn.env_steps
            self._enter(self.turn)
        return self

    def _enter(self, turn: Turn) -> None:
        for outcome in turn.outcomes:
            self._tell(outcome, outcome.copies)
        for present in turn.present:
            many = self.environment.world.places[present.agent].many * self.environment.copies
            where = np.arange(many) if present.copies is None else present.copies
            self._tell(present, where)
            for row, place in enumerate(where.tolist()):
                key = (present.agent, place)
                if key in self.open:
                    self.rows.setdefault(key, []).append(self.open.pop(key))
                self.open[key] = (present.observation[row].copy(), Row(float(present.observation[row].flat[-1])))

    def _tell(self, told: AgentTimeStep | AgentOutcome, where: NDArray[np.int64]) -> None:
        finals = dict(zip(told.final_index.tolist(), range(len(told.final_index)), strict=True))
        for row, place in enumerate(where.tolist()):
            key, done = (told.agent, place), bool(told.terminated[row] or told.truncated[row])
            if key not in self.open:
                assert told.reward[row] == 0, "a reward that belongs to no action"
                assert not done, "an end that belongs to no action"
                continue
            seen, entry = self.open[key]
            entry.reward += float(told.reward[row])
            entry.terminated |= bool(told.terminated[row])
            entry.truncated |= bool(told.truncated[row])
            if row in finals:
                assert told.final_observation is not None
                final = told.final_observation[finals[row]]
                entry.final = float(final.flat[-1])
                self.finals.append((seen, final.copy()))
            if done:
                self.rows.setdefault(key, []).append(self.open.pop(key))

    def returns(self) -> list[tuple[int, NDArray, float, bool]]:
        """(agent, first seen, return, terminated) of each episode that ended."""
        found = []
        for (agent, _), rows in self.rows.items():
            first, total = None, 0.0
            for seen, row in rows:
                first = seen if first is None else first
                total += row.reward
                if row.terminated or row.truncated:
                    found.append((agent, first, total, row.terminated))
                    first, total = None, 0.0
        return found


def numbered(kinds: Sequence[type[Any]], games: list[Any]) -> dict[str, Callable[[], Environment]]:
    """Members of random games of these kinds; every game that is made is added to `games`, with its place as number."""

    def make_one(kind: type[Any]) -> Environment:
        def game() -> Any:
            games.append(kind(len(games)))
            games[-1].number = float(len(games) - 1)
            games[-1].time = games[-1].number * APART
            return games[-1]

        adapter = PettingZooAEC if issubclass(kind, InTurns) else PettingZooEnvironment
        return adapter("game", game, 1)

    return {f"m{i}": lambda kind=kind: make_one(kind) for i, kind in enumerate(kinds)}  # type: ignore[misc]
