"""Plays every environment that a run is evaluated in, with exploration off and on fixed seeds.

In flows: a run's configuration; a `InferencePolicy` for each policy that learns. Out flow: a `Score` for each
environment and policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.spaces import World
from workers.environments.base import Environment, Player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.evaluation.episodes import environments_of, play_episodes
from workers.evaluation.scores import Score, score
from workers.planning.fixed_policy_plan import plan_fixed
from workers.rollout.build import ActorAssignment, build_fixed_collectors
from workers.rollout.players.frozen_player import FrozenPlayer, InferencePolicy
from workers.runtime.seeds import seed_of

_COPIES = 64
"""At most so many copies play at once."""


class Evaluation:
    """Of `run`: `episodes` in each environment, on seeds that follow from `seed` alone. Policies that do not learn play
    as the run says, and are measured too."""

    def __init__(self, run: Run, episodes: int, seed: int) -> None:
        self._run, self._episodes, self._seed = run, episodes, seed
        self._where = environments_of(run.environment, min(_COPIES, episodes))
        self._made: dict[str, Environment] = {}

    def play(self, deciders: Mapping[str, InferencePolicy], on_turn: Callable[[], None] = lambda: None) -> list[Score]:
        """The scores of all policies in all environments; `on_turn` is called once a turn and may raise."""
        return [score for name in self._where for score in self._play(name, deciders, on_turn)]

    def close(self) -> None:
        """Closes the environments."""
        while self._made:
            self._made.popitem()[1].close()

    def _play(self, name: str, deciders: Mapping[str, InferencePolicy], on_turn: Callable[[], None]) -> list[Score]:
        where = self._where[name]
        if name not in self._made:
            self._made[name] = CheckedEnvironment(make(where))
        environment = self._made[name]
        run = self._run.model_copy(update={"environment": where, "schedule": "asynchronous"})
        players = players_of(run, environment.world, deciders, self._seed)
        seed = seed_of(self._seed, "evaluation", name)
        earned = play_episodes(environment, players, self._episodes, seed, on_turn)
        by_policy: dict[str, dict[str, NDArray[np.float64]]] = {}
        for agent, policy in run.policy_of(environment.world).items():
            by_policy.setdefault(policy, {})[agent] = earned[agent]
        return [score(name, policy, one, environment.copies, self._seed) for policy, one in by_policy.items()]


def players_of(run: Run, world: World, deciders: Mapping[str, InferencePolicy], seed: int) -> dict[str, Player]:
    """agent -> who plays it, new and in all copies: its policy in `deciders`, without noise, or one that does not
    learn, which draws from `seed`."""
    players: dict[str, Player] = {}
    for policy, plan in plan_fixed(run, world).items():
        if policy not in deciders:
            seats = build_fixed_collectors(
                plan, world, run.environment, seed, ActorAssignment(range(run.groups), ("evaluation", 1))
            )
            players |= {world.agents[agent].name: seat.performer for (agent, _), seat in seats.items()}
    mapping = run.policy_of(world)
    for place in world.places:
        if place.name not in players:
            decider = deciders[mapping[place.name]]
            players[place.name] = FrozenPlayer(decider, run.environment.copies, None, place.many)
    return players
