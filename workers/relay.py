"""The relay: what crosses the network for several workers of one node crosses it once. One for each node, at will.

    join -> ( weights in, mailbox out; segments in, headers out ) until told to drain -> leave

In flows: weights of learners elsewhere; segments of actors elsewhere for the learners on its node. Out flows, all
through shared memory: weights for the actors on its node, segments for its learners. It may die and come back: the
coordinator then leads everyone past it, and actors announce anew what no learner has acknowledged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import zmq

from protocol.control.heartbeat import Report
from protocol.experience.validation import largest_frame
from protocol.memory.shared_file import PREFIX, Counters, memory_dir, sweep
from protocol.memory.slot_allocator import POOL
from protocol.messages import compression
from protocol.messages.core import Route, State, Status, Welcome
from protocol.spaces import World, parse_world
from protocol.transport.byte_guard import experience_limits
from protocol.transport.node_id import node_name
from protocol.transport.sockets import SUBSCRIPTIONS, Ports, check_bind
from protocol.weights.publisher import WeightPublisher
from workers import freeze_startup_objects
from workers.planning.auxiliary_plan import plan_learners
from workers.planning.policy_plan import TrainingPlan
from workers.planning.policy_spec import fields_of
from workers.planning.shared_observation_plan import plan_common
from workers.relaying.segment_relay import SegmentRelay
from workers.relaying.weight_relay import WeightRelay
from workers.runtime.last_words import run_to_end
from workers.runtime.process import WorkerProcess, run_dir_of, worker_command

__all__ = ["Relay", "main"]

log = logging.getLogger(__name__)

_EXPERIENCE, _WEIGHTS = 1, 2
_WAIT_MS = 100
_DRAIN_SECONDS = 1.0


class Relay:
    """One relay process."""

    def __init__(self, life: WorkerProcess, welcome: Welcome, plans: Mapping[str, TrainingPlan], world: World) -> None:
        self._life, self._welcome, self._plans = life, welcome, plans
        self._node = node_name(life.options.node)
        folder = run_dir_of(welcome)
        page = folder / "counters" / f"{welcome.name}.{welcome.incarnation}" if folder else None
        self._counters = Counters(page, _names(list(plans)))
        host, base = life.options.host_and_base
        check_bind(host, life.options.keys, life.options.insecure)
        self._ports = Ports(life.context, host, base, life.options.advertise, refusals=life.vitals.refusals)
        common = plan_common(plans, world)
        frames = [(plan.layout, plan.pool_slots) for plan in plans.values()]
        largest = max(largest_frame(*each) for each in [*frames, *([(common.layout, 1)] if common else [])])
        pools = sum(plan.layout.offsets(plan.pool_slots)[1] for plan in plans.values())
        pools += common.layout.offsets(common.pool)[1] if common else 0
        kinds: dict[int, int] = {_EXPERIENCE: zmq.PULL, _WEIGHTS: zmq.XPUB}
        waiting = {_EXPERIENCE: experience_limits(pools), _WEIGHTS: SUBSCRIPTIONS}
        self._addresses = self._ports.bind(kinds, {_EXPERIENCE: largest}, bytes_waiting=waiting)
        pull, xpub = self._ports.sockets[_EXPERIENCE], self._ports.sockets[_WEIGHTS]
        self._publisher = WeightPublisher(xpub, self._counters, self._ports.guard)
        self._weights: dict[str, WeightRelay] = {}
        self._experience = SegmentRelay(
            life.context,
            pull,
            welcome.run,
            welcome.secret,
            self._pool_path,
            common,
            self._counters,
            self._ports.guard,
        )
        self._offers: list[Route] = []
        self._status: Status | None = None
        self._state: State = "starting"
        life.vitals.bind(lambda: self._state, self._counters)

    def run(self) -> None:
        """Passes on until the learners are done, or told to stop."""
        client = self._life.client
        assert client is not None
        self._life.report(self._report)
        self._state = "relaying"
        log.info("event=relaying node=%s policies=%s", self._node, ",".join(self._plans))
        while client.command == "go" and not self._life.stopping.is_set():
            self._turn()
        self._state = "draining"
        end, late = time.monotonic() + _DRAIN_SECONDS, False
        while not late and any(self._counters[f"held.{name}"] for name in self._plans):
            late = time.monotonic() >= end  # on a busy machine a second may pass without one look
            self._turn()

    def close(self) -> None:
        """Lets go of sockets and memory."""
        self._experience.close()
        for weights in self._weights.values():
            weights.close()
        self._publisher.close()
        self._ports.close()

    def _turn(self) -> None:
        """Everything that has come, once; sleeps if that was nothing."""
        self._life.vitals.tick()
        self._follow()
        more = self._experience.turn()
        for weights in self._weights.values():
            more = weights.turn() or more
        self._publisher.check()
        self._advertise_routes()
        if not more:
            poller = zmq.Poller()
            incoming = [socket for weights in self._weights.values() for socket in weights.sockets]
            for socket in (*self._experience.sockets, *incoming):
                poller.register(socket, zmq.POLLIN)
            poller.poll(_WAIT_MS)

    def _follow(self) -> None:
        """Where the learners are, and who lives, when the coordinator has news."""
        client = self._life.client
        status = client.status if client is not None else None
        if status is None or status is self._status or status.command == "rejoin":
            return
        self._status = status
        for route in self._routes(status):
            plan = self._plans[route.policy]
            if self._is_near(route):
                self._experience.follow(plan, route)
            else:
                self._weights_of(plan).follow(route)
        self._experience.living({(name, incarnation) for name, incarnation in status.actors})

    def _routes(self, status: Status) -> list[Route]:
        """But for those of policies that joined the run later, whose segments and weights go straight."""
        return [route for route in status.routes if route.policy in self._plans]

    def _is_near(self, route: Route) -> bool:
        return route.node == self._node

    def _weights_of(self, plan: TrainingPlan) -> WeightRelay:
        if plan.name not in self._weights:
            path = self._path(plan.name, ".weights")
            self._weights[plan.name] = WeightRelay(self._life.context, plan, path, self._publisher, self._counters)
        return self._weights[plan.name]

    def _advertise_routes(self) -> None:
        """Tells with the next heartbeat what can be passed on now."""
        offers, me = [], self._welcome.incarnation
        for route in self._routes(self._status) if self._status is not None else ():
            if self._is_near(route):
                update = {"experience": self._addresses[_EXPERIENCE], "experience_relay": me}
                offers.append(route.model_copy(update=update))
            elif self._weights[route.policy].ready:
                offers.append(route.model_copy(update={"weights": self._addresses[_WEIGHTS], "weights_relay": me}))
        self._offers = offers

    def _report(self) -> Report:
        """For the control thread."""
        return Report(self._state, routes=self._offers, counters=self._counters.snapshot())

    def _pool_path(self, policy: str) -> Path:
        return self._path(policy, POOL)

    def _path(self, policy: str, ending: str) -> Path:
        welcome = self._welcome
        return memory_dir() / f"{PREFIX}{welcome.run}-{welcome.name}.{welcome.incarnation}-{policy}{ending}"


def _names(policies: list[str]) -> list[str]:
    """Names of a relay's counters: for each policy segments passed on, received again, that had to wait for room,
    refused by the learner, not settled yet (a level), and versions of weights passed on."""
    kinds = ("relayed", "repeated", "waiting_for_room", "refused", "held", "weights_relayed")
    each = [f"{kind}.{policy}" for policy in policies for kind in kinds]
    return ["quarantined_messages", "out_of_order", "refused_acks", "push_full", *WeightPublisher.COUNTERS, *each]


def main(life: WorkerProcess) -> None:
    """Joins, passes on."""
    welcome, run = life.join("relay")
    life.watch(run.stall_timeout)
    for incarnation in range(1, welcome.incarnation):
        sweep(f"{welcome.run}-{welcome.name}.{incarnation}")  # what it left when killed, unless somebody still reads it
    world = parse_world(welcome.world)
    plans = plan_learners(run, world, fields_of(welcome.specs))
    for plan in plans.values():
        compression.check_package(plan.config.compress)
    relay = Relay(life, welcome, plans, world)
    try:
        relay.run()
    finally:
        relay.close()


command = worker_command("relay", main)

if __name__ == "__main__":
    freeze_startup_objects()
    run_to_end(command)
