"""The memory for what all see in common is large enough by arithmetic, whatever learners do and however agents act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config.run import parse_run
from protocol.experience.flow_control import CreditWindow
from protocol.experience.ring_buffer import Ring
from protocol.experience.shared_obs import SharedObs, SharedObsWriter
from protocol.experience.validation import observed_rows
from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from tests.workers import scripted
from workers.environments.base import AgentTimeStep
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.planning.shared_observation_plan import SharedObservationPlan, plan_common
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.segment_block import Rows

COPIES = 2
IQN: dict[str, Any] = {
    "name": "iqn", "frames": 3, "buffer_capacity": 60, "learning_starts": 1, "batch_size": 1, "error_buffer": 100,
    "replay_ratio": 4.0,
}  # fmt: skip
PPO: dict[str, Any] = {"name": "ppo", "minibatches": 1}


def world(agents: int, period: int | None) -> World:
    """Agents a0, a1 … that see a number in common."""
    seats = tuple(Agent(name=f"a{i}", observation=Box(shape=(2,)), action=Discrete(n=5)) for i in range(agents))
    seen = DictPopulation(agents=seats, common=Box(shape=(1,), dtype="int32"))
    return World(id="w", population=seen, action_period=period)


class Way:
    """One policy's way out. Its learner settles when it is told to; without credit in flow `block` at once."""

    def __init__(self, plan: PolicyPlan) -> None:
        self.ring: Ring = plan.ring(None, None)
        self.credit: CreditWindow = plan.credit()
        self._block = plan.block

    def take(self, on_wait: Callable[[], None]) -> slice:
        """As a sender's."""
        while (index := self.credit.take()) is None:
            self.settle(1)
        slots = slice(index * self._block, (index + 1) * self._block)
        self.ring.begin(slots)
        return slots

    def finish(self, slots: slice, valid: Rows, before: Rows) -> None:
        """As a sender's."""
        count = self.ring.finish(slots, self.credit.next, valid, before)
        self.credit.finish(slots.start // self._block, count)
        self.credit.announce()

    def settle(self, blocks: int) -> None:
        """The oldest so many blocks in flight are settled."""
        for block in self.credit.flight[:blocks]:
            self.credit.acknowledge(block.last)
        self.credit.announce()

    def check(self, common: SharedObs) -> None:
        """Every segment in the ring that is whole finds what was seen in each of its turns."""
        table = self.ring.table
        records = table[(table["valid"] > 0) & (table["sequence"] % 2 == 0)]
        if len(records):
            rows = observed_rows(records, self.ring.layout)
            place, there = common.rows(self.ring.columns["moment"][records["slot"]], records["stream"])
            assert there[rows].all()
            own = self.ring.columns["observation"][records["slot"]][rows]
            np.testing.assert_array_equal(common.values[place[rows], 0], 1000 * own[:, 0] + own[:, 1])


def present(agent: int, t: int) -> AgentTimeStep:
    """(copy, t) in all copies."""
    one = scripted.present(t, COPIES)
    one.agent, one.reward = agent, np.zeros(COPIES, np.float32)
    return one


def play(
    run: dict[str, Any], agents: int, period: int | None, turns: list[tuple[set[int], int, int]]
) -> SharedObservationPlan:
    """Who acts in each turn, and how many blocks which policy's learner settles then; checked as it goes."""
    where = world(agents, period)
    plans = plan_policies(parse_run(run), where)
    plan = plan_common(plans, where)
    assert plan is not None
    common: SharedObsWriter = plan.writer(None)
    reader = SharedObs(common.ring)
    ways: dict[str, Any] = {name: Way(one) for name, one in plans.items()}
    seats: dict[int, AgentCollector] = {}
    for name, one in plans.items():
        for position, agent in enumerate(one.agents):
            noise: Any = np.random.default_rng(0)
            performer: Any = scripted.Performer(where, agent)
            first = position * COPIES
            seats[agent] = AgentCollector(
                name, performer, ways[name], range(first, first + COPIES), noise, common=common
            )
    names = list(plans)
    for t, (acting, policy, settled) in enumerate(turns):
        scripted.tell(common, t)
        if common.turns is not None:
            for seat in seats.values():
                seat.flush(scripted.never)
        for agent in sorted(acting):
            seats[agent % agents].act(present(agent % agents, t), scripted.never)
        ways[names[policy % len(names)]].settle(settled)
        if t % 7 == 0:
            for way in ways.values():
                way.check(reader)
    return plan


FLOWS = st.sampled_from(["block", "drop_oldest", "drop_newest"])
KINDS = st.sampled_from([PPO, IQN])


@settings(max_examples=30, deadline=None)
@given(
    kinds=st.lists(st.tuples(KINDS, FLOWS, st.integers(3, 9)), min_size=3, max_size=3),
    shared=st.booleans(),
    order=st.booleans(),
    acks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30),
    repeat=st.integers(5, 12),
)
def test_where_agents_act_in_turn_the_memory_never_runs_out_J9(
    kinds: list[Any], shared: bool, order: bool, acks: list[tuple[int, int]], repeat: int
) -> None:
    """J9: learners stall and lag at will, in every flow and mode; agents act at once or one after another."""
    run = configured(kinds, shared)
    turns = [({t % 3} if order else {0, 1, 2}, *ack) for t, ack in enumerate(acks * repeat)]
    play(run, 3, 3 if order else 1, turns)


@settings(max_examples=30, deadline=None)
@given(
    kinds=st.lists(st.tuples(KINDS, FLOWS, st.integers(3, 9)), min_size=3, max_size=3),
    shared=st.booleans(),
    turns=st.lists(
        st.tuples(st.sets(st.integers(0, 2)), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40
    ),
    repeat=st.integers(1, 12),
)
def test_where_agents_come_and_go_at_will_it_never_does_either_J9(
    kinds: list[Any], shared: bool, turns: list[Any], repeat: int
) -> None:
    play(configured(kinds, shared), 3, None, turns * repeat)


def configured(kinds: list[Any], shared: bool) -> dict[str, Any]:
    """A policy each, of its own kind; the first two agents share one if asked to."""
    policies = {
        f"p{i}": {
            "algorithm": kind,
            "flow": "drop_oldest"
            if kind["name"] == "iqn" and flow == "drop_newest"
            else flow,  # replay has no newest to drop
            "segment_length": length,
        }
        for i, (kind, flow, length) in enumerate(kinds)
    }
    agents = {"a0": "p0", "a1": "p0" if shared else "p1", "a2": "p2"}
    used = {name: policies[name] for name in agents.values()}
    return {"environment": {"copies": COPIES}, "agents": agents, "policies": used}


def test_one_ring_for_all_is_smaller_than_one_each_J9() -> None:
    """In flow `block` and with a known period four policies need no more than one does."""
    run = {"environment": {"copies": COPIES}, "policy": {"algorithm": PPO, "segment_length": 64}}
    one, four = (plan_common(plan_policies(parse_run(run), where), where) for where in (world(1, 1), world(4, 1)))
    assert one is not None
    assert four is not None
    assert one.blocks == four.blocks
    assert one.layout == four.layout
