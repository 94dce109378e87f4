"""An actor without a learner: the loop of actor.py, with segments whose slots are free again at once.

In flow: a run's configuration. Out flow: turns, and finished segments for whoever wants to look at them.
"""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.experience.ring_buffer import Ring
from protocol.memory.counters import Counters
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.simulators.endpoint import SimulatorEndpoint
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.build import ActorAssignment, build_collectors
from workers.rollout.in_process_queue import InProcessQueue
from workers.rollout.inference import act_turn
from workers.rollout.report import ActorReport
from workers.rollout.segment_block import Rows
from workers.runtime.seeds import seed_of

_NAME = ("bench", 1)
Look = Callable[[str, Ring, slice], None]
"""Told of every block of segments that is whole: its policy, and the slots of the ring."""


class ActorLoop:
    """Environment, policies and seats of `run`, for `look` at what they finish; `close` them."""

    def __init__(self, run: Run, look: Look | None = None, outside: SimulatorEndpoint | None = None) -> None:
        self.environment = CheckedEnvironment(make(run.environment, outside=outside))
        world = self.environment.world
        plans = plan_policies(run, world)
        self.performers = {name: ActingPolicy(plan.interface, plan.config) for name, plan in plans.items()}
        self._counters = Counters(None, *ActorReport.names(list(plans)))
        self._seats: dict[tuple[int, int], AgentCollector] = {}
        for name, plan in plans.items():
            sink = _Sink(plan, self._counters, look)
            self._seats |= build_collectors(
                plan, world, self.performers[name], sink, run.seed, ActorAssignment.of(run, 0, _NAME)
            )
        self._env_steps = self._agent_steps = 0
        self.turn: Turn = self.environment.reset(seed_of(run.seed, "environment", *_NAME))

    def run(self, turns: int) -> None:
        """As many turns of one group."""
        seats, environment, turn = self._seats, self.environment, self.turn
        answer = environment.preview_actions if environment.wants_preview else None
        for _ in range(turns):
            actions = act_turn(seats, turn, _never, None, answer)
            self._agent_steps += sum(map(len, actions))
            turn = environment.step(actions)
            self._env_steps += turn.env_steps
            self._counters.set("env_steps", self._env_steps)
            self._counters.set("agent_steps", self._agent_steps)
        self.turn = turn

    def inputs(self) -> list[tuple[ActingPolicy, NDArray]]:
        """Who sees what in this turn: copies."""
        return [
            (self._seats[present.agent, self.turn.group].performer, present.observation.copy())
            for present in self.turn.present
        ]

    def close(self) -> None:
        """Ends the environment."""
        self.environment.close()


class _Sink(InProcessQueue):
    """Where a policy's segments go: they are acknowledged when they are whole."""

    def __init__(self, plan: PolicyPlan, counters: Counters, look: Look | None) -> None:
        super().__init__(plan, _NAME, counters, None)
        self._look = look

    def finish(self, slots: slice, valid: Rows, before: Rows) -> None:
        """The slots are whole, and free."""
        super().finish(slots, valid, before)
        for arrival in self._arrivals:
            if self._look is not None:
                self._look(self._policy, self.ring, slots)
            self.acknowledge(self._policy, arrival, int(arrival.records["number"][-1]), len(arrival.records))
        self._arrivals.clear()


def _never() -> None:
    """Nothing waits here."""
