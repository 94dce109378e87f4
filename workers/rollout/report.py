"""What an actor reports to the coordinator with each heartbeat, gathered without stopping it."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence

from protocol.control.heartbeat import Report
from protocol.errors import SharedMemoryError
from protocol.memory.file_lock import LOCK_COUNTERS, LOCK_SECONDS
from protocol.memory.shared_file import Counters
from protocol.messages.core import Episodes, State
from protocol.spaces import World
from protocol.weights.publisher import WeightSubscriber
from workers.environments.base import INFO, Environment, Turn
from workers.environments.checks.bounds_check import BoundsCheck
from workers.metrics.diagnostics import OUTSIDE, counter, outside_counters
from workers.metrics.episode_returns import FIRST, PARTS, WINDOWS
from workers.metrics.infos import infos_counted
from workers.metrics.segment_accounting import RELEASED
from workers.metrics.step_time import STAMPS, StepClock
from workers.planning.policy_plan import TrainingPlan
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.players.fixed_collector import Collector, FixedCollector

log = logging.getLogger(__name__)

_TOLD = 64
"""Agents of which it is told at most that they see what lies outside their spaces."""

_Seats = Mapping[str, Sequence[AgentCollector | FixedCollector]]


class ActorReport:
    """Counts steps and collects the returns of finished episodes. `seats`: those of each policy, fixed ones included;
    `performers` and `subscribers` are of those that learn; `idle`: seats with actions of others."""

    def __init__(
        self,
        counters: Counters,
        quota: int,
        performers: dict[str, ActingPolicy],
        subscribers: dict[str, WeightSubscriber],
        seats: _Seats,
        idle: Sequence[Collector] = (),
    ) -> None:
        self.state: State = "starting"
        self._counters, self._clock = counters, StepClock(counters)
        self._bin = max(1, quota // PARTS)
        self._opening: float = quota / WINDOWS
        """Agent steps in which the first episodes begin; infinite when they have."""
        self._next_bin = self._bin
        self._performers, self._subscribers, self._seats = performers, subscribers, seats
        self._fixed = idle
        self._lock = threading.Lock()
        self._episodes: list[Episodes] = []
        self._env_steps = self._agent_steps = self._collected_at = 0
        self.environment: dict[str, float] = {}
        """What the world measured last."""
        self.released: Sequence[str] = ()
        """Retired policies that nothing is sent for any more."""

    @staticmethod
    def names(
        policies: Sequence[str],
        members: Sequence[str] = (),
        environment: Sequence[str] = (),
        fixed: Sequence[str] = (),
        bounded: Sequence[tuple[str, str]] = (),
    ) -> tuple[list[str], list[str]]:
        """Names of an actor's counters: whole ones, and seconds and returns. `members` of a collection; `environment`:
        what its world counts itself; `fixed`: policies that do not learn; `bounded`: (policy, agent) of those whose
        observations have bounds."""
        whole = [
            "env_steps",
            "agent_steps",
            "fixed_steps",
            "unfinished_steps",
            "resumed_steps",
            "environment_restarts",
            "push_full",
            "refused_acks",
            *LOCK_COUNTERS,
            *environment,
        ]
        for policy in policies:
            whole += [
                f"{kind}.{policy}"
                for kind in (
                    "produced",
                    "resent",
                    "refused_messages",
                    "backlog",
                    "flight",
                    "dropped.overwritten",
                    "dropped.no_credit",
                )
            ]
        waits = [f"waits.{cause}.{policy}" for cause in ("credit", "drain", "step") for policy in policies]
        places = [f"{policy}/{member}" for policy in (*policies, *fixed) for member in members]
        whole += [f"episodes.{place}" for place in places]
        going, ended, returns = ([f"{kind}.{policy}" for policy in (*policies, *fixed)] for kind in FIRST)
        whole += [*going, *ended, *dict.fromkeys(counter(OUTSIDE, policy) for policy, _ in bounded)]
        outside = [name for place in bounded for name in outside_counters(*place)]
        by_member = [f"returns.{place}" for place in places]
        return whole, [*STAMPS, *waits, *LOCK_SECONDS, *returns, *by_member, *outside]

    def begin(self, first: bool = True) -> None:
        """Its first step begins, of an actor that is the `first` in its place, or takes up where that was cut."""
        if not first:
            self._close_opening()
        self._clock.begin()

    def count(self, env_steps: int, agent_steps: int) -> None:
        """After each turn: how many steps it was."""
        self._env_steps += env_steps
        self._agent_steps += agent_steps
        self._counters.set("env_steps", self._env_steps)
        self._counters.set("agent_steps", self._agent_steps)
        self._clock.stepped()
        if self._fixed:
            self._counters.set("fixed_steps", sum(seat.steps for seat in self._fixed))
        if self._agent_steps >= self._opening:
            self._close_opening()
        if self._agent_steps >= self._next_bin:
            self._next_bin = self._agent_steps + self._bin
            self.collect()

    def collect(self) -> None:
        """Moves finished episodes from the seats to the next heartbeat; called by the acting thread only. Of each
        policy one entry, with more steps than the last, by which the coordinator knows what it was told before."""
        tell_first_episodes(self._counters, self._seats)
        if found := take_episodes(self._seats):
            at = self._collected_at = max(self._agent_steps, self._collected_at + 1)
            with self._lock:
                self._episodes += [(policy, at, *told) for policy, told in found.items()]

    def _close_opening(self) -> None:
        self._opening = math.inf
        for seats in self._seats.values():
            for seat in seats:
                seat.episodes.close_opening()

    def snapshot(self) -> Report:
        """For the control thread."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
        return Report(
            self.state,
            counters=self._counters.snapshot(),
            metrics={**self.environment, **self.measured()},
            episodes=episodes,
        )

    def measured(self) -> dict[str, float]:
        """Of the weights of each policy that learns, POLICY last."""
        metrics: dict[str, float] = {}
        metrics |= {f"{RELEASED}.{policy}": 1.0 for policy in self.released}
        for policy, performer in [*self._performers.items()]:
            if (subscriber := self._subscribers.get(policy)) is None:  # it goes just now
                continue
            metrics[f"adopted.{policy}"] = performer.version.version
            metrics[f"adoption_lag.{policy}"] = subscriber.newest.version - performer.version.version
            metrics[f"torn_reads.{policy}"] = subscriber.torn
            metrics[f"weight_requests.{policy}"] = subscriber.requests
            metrics[f"weight_requests_repeated.{policy}"] = subscriber.repeated
            metrics[f"weight_messages_refused.{policy}"] = subscriber.refused
        return metrics


class BoundsReport:
    """Counts and logs what lies outside its space first, of each agent of `world` that plays one of the `plans`."""

    def __init__(self, world: World, plans: Mapping[str, TrainingPlan]) -> None:
        self._check = BoundsCheck(world)
        policy_of = {agent: name for name, plan in plans.items() for agent in plan.agents}
        told = self._check.agents[:_TOLD]
        self._bounded = {world.places[agent].name: policy_of[agent] for agent in told if agent in policy_of}

    @property
    def places(self) -> list[tuple[str, str]]:
        """(policy, agent) of all for which there are counters."""
        return [(policy, agent) for agent, policy in self._bounded.items()]

    def look(self, turn: Turn, counters: Counters) -> None:
        """At what is seen in `turn`."""
        for excess in self._check.look(turn):
            policy = self._bounded.get(excess.name)
            if policy is None:
                continue
            value, step = outside_counters(policy, excess.name)
            counters.add(counter(OUTSIDE, policy))
            counters.set(value, excess.value)
            counters.set(step, excess.step + 1)  # 0: there is none
            text = "event=observation_outside agent=%s field=%s value=%g low=%g high=%g step=%d"
            field = excess.field or "observation"
            log.warning(text, excess.name, field, excess.value, excess.low, excess.high, excess.step)


def take_episodes(seats: _Seats) -> dict[str, tuple[int, float, int]]:
    """Policy -> episodes that have ended since the last call, if any have, the sum of their returns, and of their
    lengths."""
    found = {}
    for policy, of_policy in seats.items():
        counts, returns, steps = zip(*(seat.episodes.take() for seat in of_policy), strict=True)
        if any(counts):
            found[policy] = (sum(counts), sum(returns), sum(steps))
    return found


def tell_first_episodes(counters: Counters, seats: _Seats) -> None:
    """Of each policy what has become of the episodes that began in the opening of the run, its first twentieth."""
    for policy, of_policy in seats.items():
        for kind, values in zip(FIRST, zip(*(seat.episodes.first for seat in of_policy), strict=True), strict=True):
            counters.set(f"{kind}.{policy}", sum(values))


def update_environment_counters(
    counters: Counters, environment: Environment, policy_of: Mapping[int, str], league: bool = False
) -> dict[str, float]:
    """Brings an actor's counters up to date: restarts, what ended in which member of a collection, what the world tells
    of its episodes, and what it counts itself. What it measures besides. `policy_of`: by number of the agent. In a
    `league` the world tells of whoever played that agent, and nobody counts it."""
    figures = environment.metrics()
    for name in environment.counters:
        counters.set(name, figures.pop(name, 0.0))
    counters.set("environment_restarts", environment.restarts)
    infos = []
    for (member, agent), (episodes, returns) in environment.take_episodes().items():
        policy = policy_of[agent]
        if member.startswith(INFO):
            infos += [] if league else [(policy, member.removeprefix(INFO), episodes, returns)]
        else:
            counters.add(f"episodes.{policy}/{member}", episodes)
            counters.add(f"returns.{policy}/{member}", returns)
    if infos:
        _add(counters, infos_counted(counters.names, infos, len({*policy_of.values()})))
    return figures


def _add(counters: Counters, told: Mapping[str, float]) -> None:
    """With counters that may be new; for which a full disk may have no room."""
    try:
        counters.extend([name for name in told if name not in counters.names])
    except (SharedMemoryError, OSError) as fault:
        log.warning("event=infos_not_counted error=%r", str(fault))
        return
    for name, value in told.items():
        counters.add(name, value)
