"""What ties an actor to others: of each policy its weights that come in, and its segments that go out.

In flows: routes to learners, by the coordinator's status; weights and beacons. Out flow: finished segments, at the
latest when the run drains.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.errors import Timeout, TrainingFault
from protocol.experience.connections import ConnectionPool
from protocol.experience.proof import ActorIdentity
from protocol.experience.recovery import resend_predecessor, ring_path, rings_before
from protocol.experience.sender import ExperienceSender
from protocol.experience.shared_obs import COMMON
from protocol.memory.shared_file import Counters, unlink_if_unused
from protocol.messages.core import Status, Welcome
from protocol.weights.manifest import Manifest, Version
from protocol.weights.publisher import WeightSubscriber
from workers.planning.policy_plan import TrainingPlan
from workers.planning.shared_observation_plan import SharedObservationPlan
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.report import ActorReport
from workers.runtime.process import WorkerProcess

log = logging.getLogger(__name__)

_WEIGHTS_PATIENCE = 120.0
_LAST_SECONDS = 1.0
"""Of draining, when the run has ended or who started this actor is gone."""
_PUMP_EVERY = 0.5
"""Seconds, while an actor in lock-step waits for weights."""
_NONE_NEWER = Version(2**24, 0)
"""No weights are newer: to listen without adopting."""
_NOWHERE: NDArray[np.uint8] = np.empty(0, np.uint8)


class ActorTransport:
    """Of the actor that was given `welcome`, for all `plans` (those of auxiliaries, by whose weights nobody here acts,
    among them) with the `manifests` of their weights; `common`: what all agents see is sent once."""

    def __init__(
        self,
        life: WorkerProcess,
        welcome: Welcome,
        run: Run,
        plans: Mapping[str, TrainingPlan],
        manifests: Mapping[str, Manifest],
        common: SharedObservationPlan | None,
        counters: Counters,
    ) -> None:
        self._life, self._run, self._plans, self._counters = life, run, {**plans}, counters
        me = self._me = ActorIdentity(welcome.run, welcome.name, welcome.incarnation, welcome.proof)
        self.subscribers = {
            name: WeightSubscriber(life.context, name, manifest, run.transport) for name, manifest in manifests.items()
        }
        self.common = None if common is None else common.writer(ring_path(me, COMMON))
        self._connections = ConnectionPool(life.context, life.vitals.refusals)
        self.senders = {name: self._sender(plan) for name, plan in plans.items()}
        self._seen: object = None
        self._unsettled = False
        """Whether a learner's beacon is still to come, which says how to send to it."""
        self.drain_by: float | None = None
        """Set once the coordinator says drain: until when a wait for credit may go on."""

    def _sender(self, plan: TrainingPlan) -> ExperienceSender:
        """What sends segments of `plan`; its ring is shared also where nobody looks, as it survives this process."""
        ring = plan.ring(ring_path(self._me, plan.name), self._counters)
        ways = plan.credit(), self._counters, plan.config.compress, self.common
        return ExperienceSender(self._connections, self._me, plan.name, ring, *ways)

    def open(self, plan: TrainingPlan, manifest: Manifest) -> None:
        """The ways of one policy more."""
        subscriber = WeightSubscriber(self._life.context, plan.name, manifest, self._run.transport)
        self._plans[plan.name], self.senders[plan.name] = plan, self._sender(plan)
        self.subscribers[plan.name] = subscriber

    def release(self, policy: str) -> bool:
        """Lets go of a policy that nobody here writes for, once all that was sent is acknowledged; whether it did."""
        self.senders[policy].pump()
        if self.senders[policy].owed:
            return False
        self.senders.pop(policy).close(linger=1.0)
        self.subscribers.pop(policy).close()
        del self._plans[policy]
        return True

    def update_routes(self) -> Status | None:
        """Learners that moved are followed; the coordinator's newest word, if there was any since."""
        client = self._life.client
        status = client.status if client is not None else None
        if status is None or (status is self._seen and not self._unsettled):
            return None
        self._seen, self._unsettled = status, False
        if status.command == "drain" and self.drain_by is None:
            self.drain_by = time.monotonic() + self._run.learner_timeout
        for route in status.routes:
            subscriber = self.subscribers.get(route.policy)
            if subscriber is None:
                continue
            subscriber.route(route)
            if subscriber.same_node is None:  # its beacon tells; who came back must not wait for our next turn
                _listen(subscriber)
            if subscriber.same_node is None:
                self._unsettled = True
            else:
                self.senders[route.policy].route(route, not subscriber.same_node or route.experience_relay > 0)
        return status

    def refresh_routes(self) -> Status | None:
        """The same, though the coordinator said nothing new."""
        self._seen = None
        return self.update_routes()

    def flush(self, silent: set[str] | frozenset[str] = frozenset()) -> None:
        """What is held or was lost waits for no further block, which may be long in coming; `silent`: policies whose
        learners nobody listens to otherwise."""
        for sender in self.senders.values():
            sender.pump()
        for name in silent:
            _listen(self.subscribers[name])

    def first_weights(self, performers: Mapping[str, ActingPolicy], check: Callable[[], None]) -> None:
        """An actor acts with the learners' weights from the first step on, never with its own initial ones."""
        for name, performer in performers.items():
            started = time.monotonic()
            if not performer.adopt(self._wait(name, _WEIGHTS_PATIENCE, check)):
                raise Timeout("first_weights_missing", policy=name, seconds=_WEIGHTS_PATIENCE)
            version, waited = performer.version.version, time.monotonic() - started
            log.info("event=first_weights policy=%s version=%d waited=%.1f", name, version, waited)

    def wait_for_version(self, wanted: int, performers: Mapping[str, ActingPolicy], check: Callable[[], None]) -> bool:
        """Waits until each policy has version `wanted`, unless the run ends before; whether a round ended with that."""
        for name, performer in performers.items() if wanted else ():
            started = time.monotonic()
            while performer.version.version < wanted and not self._life.must_stop and self.drain_by is None:
                self.flush()
                before = performer.version.incarnation
                performer.adopt(self._wait(name, _PUMP_EVERY, check))
                if performer.version.incarnation != before:
                    raise TrainingFault("lockstep_learner_restarted", policy=name)
            self._counters.add(f"waits.step.{name}", time.monotonic() - started)
        return wanted > 0 and all(performer.version.version >= wanted for performer in performers.values())

    def _wait(
        self, policy: str, seconds: float, check: Callable[[], None]
    ) -> Callable[[NDArray[np.uint8], Version], Version | None]:
        """Waits so long for weights that are newer than a version."""
        return lambda out, have: self.subscribers[policy].wait(out, seconds, check, have)

    def resend_inherited(self, check: Callable[[], None]) -> None:
        """Sends what an earlier incarnation finished, to learners that cannot take it from its memory themselves."""
        client, me = self._life.client, self._me
        status = client.status if client is not None else None
        heir = me.incarnation > 1 and not self._run.lockstep  # there all is made again
        for route in status.routes if status is not None and heir else ():
            subscriber, plan = self.subscribers.get(route.policy), self._plans.get(route.policy)
            if subscriber is None or plan is None or subscriber.same_node:
                continue
            count = resend_predecessor(
                self._life.context,
                me,
                route,
                plan.layout,
                plan.block,
                Counters(None, *ActorReport.names(list(self._plans))),
                self._run.learner_timeout,
                check,
                plan.common,
            )
            log.info("event=predecessor_resent policy=%s segments=%d", route.policy, count)
        left = {incarnation for policy in self._plans for incarnation, _ in rings_before(me, policy)}
        if not any(subscriber.same_node for subscriber in self.subscribers.values()):  # nobody here takes from it
            for incarnation, path in rings_before(me, COMMON):
                if incarnation not in left:
                    unlink_if_unused(path)

    @property
    def overdue(self) -> bool:
        """Whether the coordinator said drain, and the time for that is over."""
        return self.drain_by is not None and time.monotonic() > self.drain_by

    def drain(self) -> None:
        """Sees to it that everything finished has arrived, as far as that is possible in time: none where it is over,
        little where nobody may be there to take it."""
        client = self._life.client
        over = client is not None and client.command == "stop"
        end = time.monotonic() + (0.0 if self.overdue else _LAST_SECONDS if over else self._run.learner_timeout)
        for name, sender in self.senders.items():
            if not sender.drain(max(0.0, end - time.monotonic()), self.update_routes):
                log.warning(
                    "event=undelivered policy=%s segments=%d reason=learner did not acknowledge before the deadline",
                    name,
                    sender.owed,
                )

    def close(self) -> None:
        """Lets go of sockets and memory. What could not be delivered in a run that goes on stays there, as that of one
        that was killed does: for its learner's next incarnation, or for this actor's."""
        client = self._life.client
        goes_on = client is not None and client.command in ("go", "pause") and not self._run.lockstep
        left = [sender for sender in self.senders.values() if goes_on and sender.owed]
        for sender in self.senders.values():
            if sender in left:
                sender.detach(linger=1.0)
            else:
                sender.close(linger=1.0)
        if self.common is not None:
            if left:
                self.common.ring.close()
            else:
                self.common.ring.remove()
        for subscriber in self.subscribers.values():
            subscriber.close()


def _listen(subscriber: WeightSubscriber) -> None:
    """Takes in what a learner tells of itself, and no weights."""
    subscriber.adopt(_NOWHERE, _NONE_NEWER)
