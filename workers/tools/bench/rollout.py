"""What an actor's turn costs beside its forward passes.

Out flow: figures by key. `loop.overhead_fraction`: (turn - forward passes) / turn, in a world that costs nothing, of
three agents in 128 copies that see 64 numbers, with a policy each. A forward pass is all that a policy does: network,
choice of actions, their log-probabilities, values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Run, parse_run
from protocol.experience.ring_buffer import Ring
from protocol.memory.shared_file import Counters
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

_RUN: Run = parse_run({"environment": {"id": "synthetic", "copies": 128}})
_TURNS = 64
"""Turns of a round: those of a segment, so that each round finishes as many."""
_SHORT = 4
"""Rounds in a pair of `rounds`: these are short ones."""


def measure(rounds: int) -> dict[str, float]:
    """Whole turns and the forward passes of one, again and again on what was seen in it, in turn: medians of the ratio
    pair by pair, in seconds of this thread's processor, which neighbours on the machine take no part of."""
    acting = ActorLoop(_RUN)
    try:
        acting.run(2 * _TURNS)  # memory is there and in use
        pairs = [(_turn_seconds(acting), _forward_seconds(acting)) for _ in range(_SHORT * rounds)]
        return {
            "loop.overhead_fraction": statistics.median(1 - forward / turn for turn, forward in pairs),
            "loop.us_per_turn": 1e6 * statistics.median(turn for turn, _ in pairs),
        }
    finally:
        acting.close()


def _turn_seconds(acting: ActorLoop) -> float:
    """Of a turn."""
    started = time.thread_time()
    acting.run(_TURNS)
    return (time.thread_time() - started) / _TURNS


def _forward_seconds(acting: ActorLoop) -> float:
    """Of a turn's forward passes."""
    inputs, noise = acting.inputs(), np.random.Generator(np.random.Philox(0))
    started = time.thread_time()
    for _ in range(_TURNS):
        for performer, observation in inputs:
            performer.act(observation, noise)
    return (time.thread_time() - started) / _TURNS


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
