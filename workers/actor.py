"""The actor: steps environments, runs the policies of all agents in them, writes each agent's experience in place.

    join -> first weights -> ( sync?  act  step ) until the quota is reached -> drain -> leave

In flows: weights of every policy. Out flows: one ring of segments a policy, counters and episode returns.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.common import COMMON, CommonWriter
from protocol.config import Run
from protocol.counters import Counters
from protocol.errors import ConfigurationError, Timeout, TrainingFault
from protocol.experience import ExperienceSender
from protocol.inheritance import deliver_inheritance, rings_of
from protocol.memory import PREFIX, memory_dir, unlink_if_unused
from protocol.messages import Welcome
from protocol.outlet import Outlets
from protocol.spaces import parse_world
from protocol.version import Version
from protocol.weights import WeightSubscriber
from workers import numerics
from workers.acting.cut import ActorCut, Progress
from workers.acting.ensemble import act_together
from workers.acting.in_step import InStep
from workers.acting.league import League
from workers.acting.performer import Performer
from workers.acting.seating import Hand, Table, seat_agents, seat_fixed, watched
from workers.auxiliary_plan import plan_auxiliaries
from workers.common_plan import CommonPlan, plan_common
from workers.cuts import cuts_of
from workers.environments.checked import Checked
from workers.environments.dealt import deal
from workers.environments.registry import make
from workers.environments.simulators import EXTERNAL, lend, played
from workers.fixed_plan import plan_fixed
from workers.league_plan import LeaguePlan, plan_league
from workers.life import Life, Stop, run_dir_of, worker_command
from workers.logs import log_to
from workers.plan import Plan, plan_policies, seed_of
from workers.policies.build import build, published
from workers.reporting import ActorReport, count_environment

__all__ = ["Actor", "main"]

log = logging.getLogger(__name__)

_WEIGHTS_PATIENCE = 120.0
_PUMP_EVERY = 0.5
"""Seconds, while an actor in lock-step waits for weights."""
_PAUSED_SLEEP = 0.05
_NONE_NEWER = Version(2**24, 0)
"""No weights are newer: to listen without adopting."""
_NOWHERE: NDArray[np.uint8] = np.empty(0, np.uint8)


class Actor:
    """One actor process: an environment of many copies, a seat for each agent, a way out for each policy."""

    def __init__(self, life: Life, welcome: Welcome, environment: Checked, run: Run) -> None:
        self._life, self._welcome, self._run, self._environment = life, welcome, run, environment
        self._quota = -(-run.end // run.actors) if run.lockstep else welcome.quota
        plans = plan_policies(run, environment.world)
        auxiliaries = plan_auxiliaries(run, plans)
        fixed, hand = (
            plan_fixed(run, environment.world),
            Hand.of(run, welcome.index, (welcome.name, welcome.incarnation)),
        )
        self._plans: dict[str, Plan] = {**plans, **auxiliaries}
        league = plan_league(run, environment.world)
        self._counters = self._open_counters([*self._plans], [*fixed], league)
        self._table = Table()
        for name, strategy in fixed.items():
            self._table.add(name, seat_fixed(strategy, environment.world, run.environment, run.seed, hand))
        self._performers = {name: Performer(plan.interface, plan.config) for name, plan in plans.items()}
        self._subscribers = {
            name: WeightSubscriber(life.context, name, p.manifest, run.transport)
            for name, p in self._performers.items()
        }
        for name, auxiliary in auxiliaries.items():  # nothing here acts by its weights: they tell where its learner is
            manifest = published(build(auxiliary.interface, auxiliary.config, 0)).manifest
            self._subscribers[name] = WeightSubscriber(life.context, name, manifest, run.transport)
        self._common = self._share(plan_common(plans, environment.world))
        self._outlets = Outlets(life.context)
        self._senders = {name: self._sender(plan) for name, plan in self._plans.items()}
        self._sync_intervals = {name: plan.config.sync_interval for name, plan in plans.items()}
        learning = {}
        for name, plan in plans.items():
            performer = self._performers[name]
            sender = watched(plan, plans, auxiliaries, self._senders, self._common)
            seats = seat_agents(plan, environment.world, performer, sender, run.seed, hand, self._common)
            self._table.add(name, seats)
            learning[name] = seats
        self._league: League | None = None
        if league is not None:
            folder, shown = run_dir_of(welcome), (plans, self._performers, learning)
            self._league = League(league, run, environment.world, hand, *shown, folder, self._counters)
            self._table.seats |= self._league.seats
        self._in_step = InStep(run, self._table.writing) if run.lockstep else None
        cuts = cuts_of(run, [*plans], run_dir_of(welcome))
        self._cut = None if cuts is None else ActorCut(cuts, welcome.index, environment, self._table.seats)
        self._seen: object = None
        self._unsettled = False
        """Whether a learner's beacon is still to come, which says how to send to it."""
        self._drain_by: float | None = None
        """Set once the coordinator says drain: until when a wait for credit may go on."""
        self._report = ActorReport(
            self._counters, self._quota, self._performers, self._subscribers, self._table.of, self._table.idle
        )
        life.vitals.watch(lambda: self._report.state, self._counters, self._report.measured)

    def run(self) -> None:
        """Acts until the quota is reached or the run ends; then sees to it that everything finished has arrived."""
        client = self._life.client
        assert client is not None
        client.start(self._report.snapshot)
        self._first_weights()
        self._report.state = "acting"
        seats, copies = len(self._table.seats), self._environment.copies
        log.info("event=acting quota=%d agents=%d copies=%d", self._quota, seats, copies)
        self._act()
        self._report.state = "draining"
        self._drain()

    def close(self) -> None:
        """Lets go of sockets and memory."""
        for sender in self._senders.values():
            sender.close(linger=1.0)
        if self._common is not None:
            self._common.ring.remove()
        for subscriber in self._subscribers.values():
            subscriber.close()
        self._environment.close()

    def _act(self) -> None:
        seats, environment = self._table.seats, self._environment
        self._life.vitals.rest()  # to begin may take a world minutes
        who = () if self._in_step is not None else (self._welcome.name, self._welcome.incarnation)
        turn, done = environment.reset(seed_of(self._run.seed, "environment", *who)), Progress()
        there = None if self._cut is None else self._cut.load(self._check)
        if there is not None:
            turn, done = there
            self._counters.set("resumed_steps", done.agent_steps)
        before = replace(done)
        while done.agent_steps < self._quota or (self._in_step is not None and self._in_step.within(turn)):
            if (not turn.group and (turn.env_steps or not turn.present)) or not done.turns:
                self._sync(done)
                done.turns += 1
            if self._common is not None and turn.common is not None:
                self._common.write(turn.common)
                if self._common.turns is not None:  # who is away for long must not hold up memory
                    for seat in self._table.writing:
                        seat.flush(self._check)
            if self._league is not None:
                turn = self._league.begin(turn, environment.conclude)
            for outcome in turn.outcomes:
                seats[outcome.agent, turn.group].receive(outcome, self._check)
            actions = act_together(seats, turn, self._check)
            done.agent_steps += sum(map(len, actions))
            turn = environment.step(actions)
            done.env_steps += turn.env_steps
            self._report.count(done.env_steps - before.env_steps, done.agent_steps - before.agent_steps)
            self._life.vitals.beat()
            self._pause()
            if self._life.must_stop or self._drain_by is not None:
                break

    def _pause(self) -> None:
        """Waits as long as the coordinator says pause; what is open stays so."""
        client = self._life.client
        if client is None or client.command != "pause":
            return
        self._report.state = "paused"
        while client.command == "pause" and not self._life.must_stop:
            self._check()
            time.sleep(_PAUSED_SLEEP)
        self._report.state = "acting"

    def _sync(self, done: Progress) -> None:
        """At a turn boundary: newer weights where they are due, and the learners' present addresses."""
        if self._in_step is not None:
            if self._keep_step(wanted := self._in_step.wanted(done.turns)) and self._cut is not None:
                self._cut.write_if_due(wanted - 2, done)
        else:
            for name, interval in self._sync_intervals.items():
                if done.turns % interval == 0:
                    self._performers[name].sync(self._subscribers[name])
        client = self._life.client
        if client is not None and client.changed.is_set():
            client.changed.clear()
            self._report.collect()
            figures = count_environment(self._counters, self._environment, self._table.policy_of)
            self._report.environment = figures
            for seat in self._table.writing:
                seat.flush(self._check)
            for sender in self._senders.values():
                sender.pump()  # what is held or was lost waits for no further block, which may be long in coming
            for name in self._plans.keys() - self._performers.keys():
                self._listen(self._subscribers[name])
            self._follow_routes()

    def _keep_step(self, wanted: int) -> bool:
        """Waits until each policy has version `wanted`, unless the run ends before; whether a round ended with that."""
        for name, performer in self._performers.items() if wanted else ():
            started = time.monotonic()
            while performer.version.version < wanted and not self._life.must_stop and self._drain_by is None:
                for sender in self._senders.values():
                    sender.pump()
                news = self._subscribers[name].wait(performer.spare, _PUMP_EVERY, self._check, performer.version)
                if news is not None and news.incarnation != performer.version.incarnation:
                    raise TrainingFault(
                        f"the learner of policy {name!r} came back in a run in lock-step without the others; start all "
                        "workers of the run anew, as `rookery train` does"
                    )
                if news is not None:
                    performer.swap(news)
            self._counters.add(f"waits.step.{name}", time.monotonic() - started)
        return wanted > 0 and all(performer.version.version >= wanted for performer in self._performers.values())

    def _check(self) -> None:
        """While waiting for credit: follow a learner that moved; end if told so."""
        self._life.vitals.beat()
        self._follow_routes()
        self._environment.attend()
        self._life.check()
        if self._drain_by is not None and time.monotonic() > self._drain_by:
            log.warning("event=undelivered reason=told to drain, but no learner gave credit before the deadline")
            raise Stop

    def _check_early(self) -> None:
        """Before the first step, when there is nothing to drain."""
        self._check()
        if self._drain_by is not None:
            raise Stop

    def _follow_routes(self) -> None:
        client = self._life.client
        pulse = client.pulse if client is not None else None
        if pulse is None or (pulse is self._seen and not self._unsettled):
            return
        self._seen, self._unsettled = pulse, False
        if self._league is not None:
            self._league.hear(pulse.view)
        if pulse.command == "drain" and self._drain_by is None:
            self._drain_by = time.monotonic() + self._run.learner_timeout
        for route in pulse.routes:
            subscriber = self._subscribers.get(route.policy)
            if subscriber is None:
                continue
            subscriber.route(route)
            if (
                subscriber.same_node is None
            ):  # its beacon tells; a learner that came back must not wait for our next turn
                self._listen(subscriber)
            if subscriber.same_node is None:
                self._unsettled = True
            else:
                self._senders[route.policy].route(route, not subscriber.same_node or route.experience_relay > 0)

    def _listen(self, subscriber: WeightSubscriber) -> None:
        """Takes in what a learner tells of itself, and no weights."""
        subscriber.adopt(_NOWHERE, _NONE_NEWER)

    def _first_weights(self) -> None:
        """Acts with the learners' weights from the first step on, never with its own initial ones."""
        self._report.state = "waiting"
        for name, performer in self._performers.items():
            started = time.monotonic()
            version = self._subscribers[name].wait(performer.spare, _WEIGHTS_PATIENCE, self._check_early)
            if version is None:
                raise Timeout(
                    f"no weights of policy {name!r} arrived within {_WEIGHTS_PATIENCE:g} s; is its learner running? "
                    "see `logs/`"
                )
            performer.swap(version)
            log.info(
                "event=first_weights policy=%s version=%d waited=%.1f",
                name,
                version.version,
                time.monotonic() - started,
            )
        self._seen = None
        self._follow_routes()
        while self._league is not None and not self._league.ready:  # the first members are there with the first weights
            self._check_early()
            time.sleep(_PAUSED_SLEEP)
        self._inherit()

    def _inherit(self) -> None:
        """Sends what an earlier incarnation finished, to learners that cannot take it from its memory themselves."""
        client, welcome = self._life.client, self._welcome
        pulse = client.pulse if client is not None else None
        heir = welcome.incarnation > 1 and not self._run.lockstep  # there all is made again
        for route in pulse.routes if pulse is not None and heir else ():
            subscriber, plan = self._subscribers.get(route.policy), self._plans.get(route.policy)
            if subscriber is None or plan is None or subscriber.same_node:
                continue
            count = deliver_inheritance(
                self._life.context,
                welcome.run,
                welcome.name,
                welcome.incarnation,
                route,
                plan.layout,
                plan.block,
                Counters(None, *ActorReport.names(list(self._plans))),
                self._run.learner_timeout,
                self._check_early,
                plan.common,
            )
            log.info("event=inherited policy=%s segments=%d", route.policy, count)
        before = (welcome.run, welcome.name, welcome.incarnation)
        left = {incarnation for policy in self._plans for incarnation, _ in rings_of(*before, policy)}
        if not any(subscriber.same_node for subscriber in self._subscribers.values()):  # nobody here takes from it
            for incarnation, path in rings_of(*before, COMMON):
                if incarnation not in left:
                    unlink_if_unused(path)

    def _drain(self) -> None:
        self._life.vitals.rest()
        self._report.collect()
        end = time.monotonic() + (1.0 if self._life.orphaned else self._run.learner_timeout)
        for name, sender in self._senders.items():
            if not sender.drain(max(0.0, end - time.monotonic()), self._follow_routes):
                log.warning("event=undelivered policy=%s reason=learner did not acknowledge before the deadline", name)
        self._counters.set("unfinished_steps", self._table.open_rows)
        count_environment(self._counters, self._environment, self._table.policy_of)

    def _share(self, plan: CommonPlan | None) -> CommonWriter | None:
        """Where what all agents see is written."""
        return None if plan is None else plan.writer(self._memory(COMMON))

    def _memory(self, name: str) -> Path:
        """The file of one of this actor's rings; also where nobody shares it, as it survives this process."""
        welcome = self._welcome
        return memory_dir() / f"{PREFIX}{welcome.run}-{welcome.name}.{welcome.incarnation}-{name}.ring"

    def _sender(self, plan: Plan) -> ExperienceSender:
        welcome = self._welcome
        ring = plan.ring(self._memory(plan.name), self._counters)
        return ExperienceSender(
            self._life.context,
            welcome.run,
            welcome.name,
            welcome.incarnation,
            plan.name,
            ring,
            plan.credit(),
            plan.block,
            self._counters,
            plan.config.compress,
            self._common,
            self._outlets,
        )

    def _open_counters(self, names: list[str], fixed: list[str], league: LeaguePlan | None) -> Counters:
        run_dir = run_dir_of(self._welcome)
        name = f"{self._welcome.name}.{self._welcome.incarnation}"
        members = list(self._run.environment.members or ())
        whole, sums = ActorReport.names(names, members, self._environment.counters, fixed)
        if league is not None:
            games, margins = league.counters()
            whole, sums = [*whole, *games], [*sums, *margins]
        return Counters(run_dir / "counters" / name if run_dir else None, whole, sums)


def main(life: Life) -> None:
    """Joins, makes the environment, acts."""
    numerics.prepare()
    _, welcome = life.join("actor")
    run = Run.model_validate_json(welcome.config)
    run_dir = run_dir_of(welcome)
    log_to(welcome.name, run, run_dir)
    log.info("event=joined run=%s name=%s incarnation=%d", welcome.run, welcome.name, welcome.incarnation)
    life.watch(_turn_seconds(run))
    where = played(run, welcome.index)
    lent = lend(life, welcome) if where.id == EXTERNAL else None
    environment = Checked(deal(run, welcome.index) if run.lockstep else make(where, outside=lent))
    if environment.world != parse_world(welcome.world):
        raise ConfigurationError(
            f"{run.environment.id} has other agents or spaces here than at the coordinator; "
            "install the same version on both"
        )
    actor = Actor(life, welcome, environment, run)
    try:
        actor.run()
    finally:
        actor.close()


def _turn_seconds(run: Run) -> float:
    """How long a turn may take: processes that step the world are told to be hung, and started again, within it."""
    world = run.environment
    return run.stall_timeout + (2 * world.step_timeout * (1 + world.restarts) if world.processes else 0.0)


command = worker_command("actor", main)

if __name__ == "__main__":
    command()
