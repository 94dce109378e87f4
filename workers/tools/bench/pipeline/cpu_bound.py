"""What one core needs for an environment step, its forward passes and its updates, and nothing else.

In flow: a run's configuration. Out flow: seconds for each environment step, by part. Environment, policies and batches
are the run's own, of real rows, in one process and one thread: the seconds of this thread's processor are counted
within `step` of the environment, within a policy's acting and within a learner's update. What lies between them, which
is what the pipeline adds, is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from protocol.config.run import Run
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from protocol.weights.publisher import WeightSource
from workers.environments.registry import make
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.report import LearnerReport
from workers.planning.policy_plan import plan_policies
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.build import ActorAssignment, Collectors, build_collectors
from workers.rollout.in_process_queue import InProcessQueue
from workers.rollout.inference import act_turn
from workers.rollout.report import ActorReport
from workers.runtime.seeds import seed_of

_NAME = ("bench", 1)


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one core for an environment step; train steps and agent steps for each."""

    environment: float
    forward: float
    update: float
    train_steps: float
    agent_steps: float

    @property
    def bound(self) -> float:
        """Environment steps a second of two cores that do nothing else."""
        return 2 / (self.environment + self.forward + self.update)


class Bare:
    """The loop of one process: act, step, update. `warm` it until it learns, then `measure` it again and again."""

    def __init__(self, run: Run) -> None:
        self._clock = {"environment": 0.0, "forward": 0.0, "update": 0.0}
        self._environment = make(run.environment)
        world = self._environment.world
        plans = plan_policies(run, world)
        acting = Counters(None, *ActorReport.names(list(plans)))
        learning = Counters(None, *LearnerReport.names(list(plans)))
        self._collectors = Collectors()
        self._members: list[PolicyLearner] = []
        hand, here = ActorAssignment.of(run, 0, _NAME), torch.device("cpu")
        for name, plan in plans.items():
            channel = InProcessQueue(plan, _NAME, acting, None)
            performer = ActingPolicy(plan.interface, plan.config)
            context = LearnerContext(run, 1, here, learning, self._publisher(performer))
            member = PolicyLearner(plan, plan.fraction_of_steps(world), channel, context)
            member.resume(None, Version(0, 0))
            performer.act = self._timed("forward", performer.act)  # type: ignore[method-assign]
            member.update.update = self._timed("update", member.update.update)  # type: ignore[method-assign]
            self._collectors.add(name, build_collectors(plan, world, performer, channel, run.seed, hand))
            self._members.append(member)
        self._step = self._timed("environment", self._environment.step)
        self._turn = self._environment.reset(seed_of(run.seed, "environment", *_NAME))

    def warm(self, updates: int) -> None:
        """Until every policy has made so many updates."""
        before = [member.update.train_steps for member in self._members]
        while any(
            member.update.train_steps < steps + updates for member, steps in zip(self._members, before, strict=True)
        ):
            self._one_turn()

    def measure(self, rounds: int, seconds: float) -> Parts:
        """Medians of `rounds` stretches of at least `seconds` and some updates of each policy."""
        found = [self._stretch(seconds) for _ in range(rounds)]
        medians = [statistics.median(values) for values in zip(*found, strict=True)]
        return Parts(*medians)

    def close(self) -> None:
        """Ends the environment."""
        self._environment.close()

    def _stretch(self, seconds: float) -> tuple[float, ...]:
        self._clock.update(dict.fromkeys(self._clock, 0.0))
        before, end = self._trained, time.monotonic() + seconds
        env_steps = agent_steps = 0
        fed = before
        while time.monotonic() < end or self._trained == fed:  # whole batches: ends with an update
            fed = self._trained
            made, acted = self._one_turn()
            env_steps, agent_steps = env_steps + made, agent_steps + acted
        parts = [spent / env_steps for spent in self._clock.values()]
        return (*parts, (self._trained - before) / env_steps, agent_steps / env_steps)

    @property
    def _trained(self) -> int:
        return sum(member.update.train_steps for member in self._members)

    def _one_turn(self) -> tuple[int, int]:
        """Environment steps, agent steps."""
        actions = act_turn(self._collectors.seats, self._turn, _never)
        self._turn = self._step(actions)
        for member in self._members:
            while member.step():
                pass
        return self._turn.env_steps, sum(map(len, actions))

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        clock = self._clock

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.thread_time()
            result = work(*arguments, **named)
            clock[part] += time.thread_time() - started
            return result

        return timed

    def _publisher(self, performer: ActingPolicy) -> Callable[[str, WeightSource, Version], None]:
        def publish(_policy: str, weights: WeightSource, version: Version) -> None:
            performer.spare[:] = weights() if callable(weights) else weights
            performer.adopt(lambda *_: version)

        return publish


def _never() -> None:
    """Nothing waits here."""
