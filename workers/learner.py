"""The learner: receives segments, trains, publishes weights, keeps checkpoints. One policy a process by default.

    join -> resume -> first publication -> ( receive  update  publish ) until told to drain -> last checkpoint -> leave

In flows: segments of its policies, from actors or all at once from a dataset. Out flows: weights, acknowledgements,
checkpoints, measurements.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import zmq

from protocol.config.run import Run
from protocol.control.file_fetch import FileFetcher, fetching
from protocol.experience.ack_publisher import Window
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import ExperienceReceiver
from protocol.experience.validation import largest_frame
from protocol.memory.shared_file import PREFIX, Counters, memory_dir, read_counters
from protocol.messages import compression
from protocol.messages.core import Route, Status, Welcome
from protocol.spaces import World, parse_world
from protocol.transport.byte_guard import experience_limits
from protocol.transport.sockets import SUBSCRIPTIONS, Ports, check_bind, poll
from protocol.weights.publisher import WeightPublisher, WeightSubscriber
from workers import freeze_startup_objects
from workers.algorithms.cuda_graphs.step_compiler import StepCompiler
from workers.learning.cohort import Cohort
from workers.learning.curiosity import IntrinsicReward
from workers.learning.datasets.source import load_dataset
from workers.learning.device import choose_device
from workers.learning.distributed.data_parallel_learner import DataParallelLearner
from workers.learning.distributed.rendezvous import check_meeting, rendezvous, requested_name
from workers.learning.league_publisher import LeaguePublisher
from workers.learning.lockstep_learner import LockstepLearner
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.report import LearnerReport
from workers.learning.source import SegmentSource
from workers.learning.starts import start_name, weights_name
from workers.metrics.hooks.calls import HookCalls
from workers.planning.auxiliary_plan import AuxiliaryPlan, plan_learners
from workers.planning.cohorts import stacks_of
from workers.planning.data_parallel import ledger_path, rank_for_actor, rank_of_learner
from workers.planning.league_plan import plan_league
from workers.planning.policy_plan import PolicyPlan, TrainingPlan, most_steps, plan_added
from workers.planning.shared_observation_plan import plan_common
from workers.policies.export.graph import GraphExports
from workers.runtime import torch_setup
from workers.runtime.last_words import run_to_end
from workers.runtime.lockstep_checkpoints import checkpoints_of
from workers.runtime.process import WorkerProcess, run_dir_of, worker_command

__all__ = ["Learner", "main"]

log = logging.getLogger(__name__)

_EXPERIENCE, _WEIGHTS, _ACKS = 1, 2, 3
_DRAIN_QUIET = 0.2
_DRAIN_LOOK = 20
"""Milliseconds."""
_LOOKS = 5
"""For data, between two whole turns of a learner that has none."""
_ORDERS_SECONDS = 5.0
"""To wait at the start for what the run's roster says; a coordinator that is away longer holds nobody up."""
_LAST_SECONDS = 1.0
"""Of draining, when a signal says so and the run goes on."""


class _Drain:
    """The time in which a learner that was told to stop uses what still arrives: until nothing came for a moment, or at
    once where everything is `settled`, and `seconds` at most."""

    def __init__(self, seconds: float, settled: bool) -> None:
        now = time.monotonic()
        self._end, self._quiet, self._settled = now + seconds, now + _DRAIN_QUIET, settled

    def over(self, active: bool) -> bool:
        """Whether it is; `active`: something came or was learned just now."""
        now = time.monotonic()
        if active:
            self._quiet = now + _DRAIN_QUIET
        return now >= self._end or (not active and (self._settled or now >= self._quiet))


class Learner:
    """One learner process and its members."""

    def __init__(
        self, life: WorkerProcess, welcome: Welcome, run: Run, plans: Mapping[str, TrainingPlan], world: World
    ) -> None:
        self._life, self._welcome, self._run = life, welcome, run
        self._folder = run_dir_of(welcome)
        policies = welcome.policies
        self._counters = Counters(
            self._folder / "counters" / f"{welcome.name}.{welcome.incarnation}" if self._folder else None,
            *LearnerReport.names(policies),
        )
        self._report = LearnerReport(self._counters)
        self._hooks = HookCalls(run, welcome.name, self._folder)
        self._hooks.count_in(self._counters)
        life.orders = self._hooks.orders
        life.vitals.bind(lambda: self._report.state, self._counters)
        host, base = life.options.host_and_base
        check_bind(host, life.options.keys, life.options.insecure)
        self._ports = Ports(life.context, host, base, life.options.advertise, refusals=life.vitals.refusals)
        common = plan_common({name: plans[name] for name in policies}, world)
        frames = [(plans[name].layout, plans[name].pool_slots) for name in policies]
        largest = max(largest_frame(*each) for each in [*frames, *([(common.layout, 1)] if common else [])])
        kinds: dict[int, int] = {_EXPERIENCE: zmq.PULL, _WEIGHTS: zmq.XPUB, _ACKS: zmq.XPUB}
        pools = sum(plans[name].layout.offsets(plans[name].pool_slots)[1] for name in policies)
        pools += common.layout.offsets(common.pool)[1] if common else 0
        waiting = {_EXPERIENCE: experience_limits(pools), _WEIGHTS: SUBSCRIPTIONS, _ACKS: SUBSCRIPTIONS}
        self._addresses = self._ports.bind(kinds, {_EXPERIENCE: largest}, bytes_waiting=waiting)
        sockets = self._ports.sockets
        self._size = max((plans[name].ranks for name in policies), default=1)
        self._rank = rank_of_learner(welcome.name, self._size)
        if self._size > 1:
            check_meeting(host, life.options.insecure, policies[0], self._rank, self._size)
        receives = (
            sockets[_EXPERIENCE],
            sockets[_ACKS],
            welcome.run,
            welcome.secret,
            welcome.incarnation,
            self._counters,
        )
        self._receiver = ExperienceReceiver(*receives, self._owns_actor, self._ports.guard)
        if common is not None:
            self._receiver.add_common(common.layout, common.pool)
        self._publisher = WeightPublisher(sockets[_WEIGHTS], self._counters, self._ports.guard)
        self._status: Status | None = None
        self._frozen: Collection[str] = ()
        """Who was so when this learner began."""
        self._league = plan_league(run, world)
        self._plans, self._every, self._world = [plans[name] for name in policies], plans, world
        self._cuts = checkpoints_of(run, [*plans], self._folder)
        self._graphs = GraphExports(self._folder if self._rank == 0 else None, world)
        self._subscribers: list[tuple[str, WeightSubscriber]] = []
        """To the weights of auxiliaries that the members consult, by name."""
        self._members: list[PolicyLearner] = []
        self._files = FileFetcher(self._fetch)
        compiler = StepCompiler(life.vitals.idle, life.vitals.tick)  # meanwhile the loop is not stuck
        self._cohort = Cohort(run.restarts, self._publisher.last, self._counters, life.vitals.tick, compiler)

    def run(self) -> None:
        """Resumes, then learns until the actors are done and everything they finished is used, or told to stop."""
        self._await_orders()
        self._begin()
        self._follow_status()
        arrived, learned = False, False
        drain: _Drain | None = None
        while drain is None or not drain.over(arrived or learned):
            arrived, learned = self._receiver.receive() > 0, False
            for member, outcome in self._cohort.turns():
                with self._cohort.restarting(member):
                    if member.learn(outcome):
                        learned = True
                        self._measure(member)
                        if member.publication_due:
                            member.publish()
            for member in self._members:
                member.freeze_if_due()
                member.save_if_due()
            self._receiver.beacon(time.monotonic())
            self._publisher.check()
            self._follow_status()
            if drain is None and self._told_to_stop:
                self._report.state, drain = "draining", self._drain()
                arrived = True  # what came with the order is followed in one more turn
            elif drain is not None and not learned:
                poll(self._receiver.sockets, _DRAIN_LOOK)
            elif not learned:
                self._wait_for_data()
        self._life.vitals.idle()
        self._cohort.finish()

    def close(self) -> None:
        """Lets go of memory and sockets, once checkpoints are on disk."""
        self._graphs.close()
        self._files.close()
        for member in self._members:
            member.close()
        self._receiver.close()
        for _, subscriber in self._subscribers:
            subscriber.close()
        self._publisher.close()
        self._ports.close()

    def _begin(self) -> None:
        """Resumes the members, each with a first publication."""
        if self._size > 1:  # the others ask the coordinator for the way
            self._report.routes = [self._route(plan.name) for plan in self._plans]
        self._life.report(self._report.snapshot)
        device = choose_device(self._run, self._welcome.index).type
        for plan, stack in zip(self._plans, stacks_of(self._run, self._plans, device), strict=True):
            self._members.append(self._member(plan))
            self._cohort.add(self._members[-1], stack)
        self._report.routes = [self._route(plan.name) for plan in self._plans]
        self._report.state = "learning"
        log.info("event=learning policies=%s", ",".join(self._welcome.policies))
        for way, names in self._cohort.stacks:
            log.info("event=%s policies=%s cohort=%s", way, ",".join(names), self._run.cohort)

    def _await_orders(self) -> None:
        """Learns nothing before it has heard what the run's roster says of its members, or waited long enough."""
        client, end = self._life.client, time.monotonic() + _ORDERS_SECONDS
        while client is not None and self._heard is None and not self._told_to_stop:
            if time.monotonic() >= end:
                log.warning("event=roster_unheard seconds=%g", _ORDERS_SECONDS)
                break
            self._life.vitals.tick()  # who waits for a coordinator that is away does not hang
            client.changed.wait(_DRAIN_QUIET)
            client.changed.clear()
        self._life.vitals.idle()
        if self._heard is not None:
            self._frozen = self._heard.view.get("roster", {}).get("frozen", ())

    def _measure(self, member: PolicyLearner) -> None:
        """Reports what the last update of `member` said of itself; of several ranks the first does."""
        if not self._rank:
            self._report.metrics.update({f"{member.name}.{k}": v for k, v in member.measured.items()})

    def _wait_for_data(self) -> None:
        """Sleeps until a message or news come, `starvation_sleep` at most between two looks; data wake it at once."""
        started = time.monotonic()
        together = any(member.waits_for == "ranks" for member in self._members)
        milliseconds, looks = (1, 1) if together else (max(1, int(self._run.starvation_sleep * 1000)), _LOOKS)
        for _ in range(looks):
            if poll(self._receiver.sockets, milliseconds) or self._told_to_stop or self._heard is not self._status:
                break
        waited = time.monotonic() - started
        for member in self._members:
            if member.done or member.frozen:
                continue
            self._counters.add(f"waits.{member.waits_for}.{member.name}", waited / len(self._members))

    def _follow_status(self) -> None:
        """Who lives and who died, when the coordinator has news."""
        status = self._heard
        if status is None or status is self._status:
            return
        asked = self._status is not None and status.checkpoints > self._status.checkpoints
        self._status = status
        living = {(name, incarnation) for name, incarnation in status.actors}
        self._receiver.living(living, salvage=not self._run.lockstep)  # in step everything is made again
        for route in status.routes:
            for name, subscriber in self._subscribers:
                if name == route.policy:
                    subscriber.route(route)
        for plan in self._plans:
            if isinstance(plan, PolicyPlan):
                wanted = plan.name in status.view.get("graphs", ())
                self._graphs.follow(wanted, plan.name, plan.agents[0], plan.config)
        for member in self._members:
            if isinstance(member, DataParallelLearner):
                member.attended = any(self._owns_actor(name) for name, _ in living)
                member.check_peers(status.routes)
            member.hurries = self._size == 1 and status.view.get("cut_short", False)
            roster = status.view.get("roster", {})
            with self._cohort.restarting(member):
                member.obey(roster)
                self._replace(member, roster.get("replaced", {}).get(member.name))
            self._add_members(member, roster.get("members", {}).get(member.name, ()))
            member.heard(status.returns.get(member.name), status.view.get("evaluations", {}).get(member.name))
            if asked:
                member.save()
            if not member.static:
                self._receiver.let_go(member.name, member.uses)

    def _replace(self, member: PolicyLearner, told: Mapping[str, Any] | None) -> None:
        """Weights that the run's roster has for a member, unless it learns from them already, once they are here."""
        if told is not None and told["number"] > member.replaced:
            data = self._files.get(weights_name(member.name, told["sha256"]), told["checksum"])
            if data is not None:
                member.replace(data, told["number"])

    def _add_members(self, member: PolicyLearner, told: Collection[Mapping[str, Any]]) -> None:
        """What people add to the library of a league, once it is here."""
        league = member.freezing
        if league is None or not told:
            return
        for one in league.missing(told):
            data = self._files.get(weights_name(member.name, one["sha256"]), one["checksum"])
            if data is not None:
                league.join(one["member"], data)

    def _fetch(self, name: str, checksum: str) -> bytes:
        """A file of the run's library, from the coordinator."""
        life = self._life
        assert life.client is not None
        fetch = fetching(life.context, life.client)
        return fetch(name, checksum, self._run.learner_timeout, life.stopping)

    @property
    def _heard(self) -> Status | None:
        """What the coordinator said last; None where it does not know this learner."""
        client = self._life.client
        status = client.status if client is not None else None
        return None if status is None or status.command == "rejoin" else status

    @property
    def _told_to_stop(self) -> bool:
        client = self._life.client
        return self._life.stopping.is_set() or client is None or client.command != "go" or self._retired

    @property
    def _retired(self) -> bool:
        """Whether nobody sends anything any more, as the run's roster has no place for its policies."""
        released = () if self._heard is None else self._heard.view.get("released", ())
        return {*self._welcome.policies} <= {*released}

    def _drain(self) -> _Drain:
        """Actors of a run that goes on do not cease to send: what is not settled they send to the next incarnation."""
        client = self._life.client
        goes_on = client is not None and client.command in ("go", "pause")
        settled = client is not None and client.status is not None and client.status.view.get("settled", False)
        return _Drain(_LAST_SECONDS if goes_on else self._run.learner_timeout, settled)

    def _owns_actor(self, actor: str) -> bool:
        """Whether the segments of `actor` come here."""
        return self._size == 1 or rank_for_actor(actor, self._size) == self._rank

    def _route(self, policy: str) -> Route:
        return Route(
            policy=policy,
            learner=self._welcome.name,
            incarnation=self._welcome.incarnation,
            experience=self._addresses[_EXPERIENCE],
            weights=self._addresses[_WEIGHTS],
            acknowledgements=self._addresses[_ACKS],
        )

    def _curiosity(self, plan: TrainingPlan, device: torch.device) -> IntrinsicReward | None:
        """What the bonus of a policy that is curious comes from, subscribed to its auxiliary's weights."""
        curiosity = plan.curiosity
        if curiosity is None:
            return None
        auxiliary = self._every[curiosity.auxiliary]
        assert isinstance(auxiliary, AuxiliaryPlan)
        curious = IntrinsicReward(plan.name, auxiliary, curiosity.coefficient, device, self._counters)
        subscriber = WeightSubscriber(self._life.context, auxiliary.name, curious.manifest, self._run.transport)
        curious.adopt = subscriber.adopt
        self._subscribers.append((auxiliary.name, subscriber))
        return curious

    def _freezing(self, plan: TrainingPlan) -> LeaguePublisher | None:
        """How a player of a league joins the library."""
        if self._league is None or not isinstance(plan, PolicyPlan):
            return None
        player = self._league.players[plan.name]
        return LeaguePublisher(player, self._run, plan.interface, self._world, plan.config, self._folder)

    def _source(self, plan: TrainingPlan) -> tuple[SegmentSource, int]:
        """Where the segments of `plan` come from, and how many rows earlier incarnations had of them."""
        if plan.static:
            return load_dataset(plan, self._counters), 0
        ledger = ReceiptLog(ledger_path(self._folder, plan.name, self._rank) if self._folder else None)
        compression.check_package(plan.config.compress)
        window = Window(plan.credit_blocks, plan.credit_blocks * plan.block)
        before = 0 if self._run.lockstep else self._rows_before(plan)
        most = most_steps(self._run.end)  # of any actor: a segment has a step at least
        self._receiver.add_policy(plan.name, plan.layout, ledger, plan.pool_slots, plan.check, window, most)
        return self._receiver, before

    def _rows_before(self, plan: TrainingPlan) -> int:
        """Rows that earlier incarnations received, by which schedules go on; of ranks, those of this one."""
        named = f"{self._welcome.name}.*" if plan.ranks > 1 else "[!.]*"
        pages = () if self._folder is None else (self._folder / "counters").glob(named)
        return sum(int(read_counters(page).get(f"rows_received.{plan.name}", 0)) for page in pages)

    def _member(self, plan: TrainingPlan) -> PolicyLearner:
        welcome, run = self._welcome, self._run
        ranked = plan.ranks > 1
        device = choose_device(run, self._rank if ranked else welcome.index, ranked)
        source, rows_before = self._source(plan)
        folder = None if self._rank else self._folder
        context = LearnerContext(
            run,
            welcome.incarnation,
            device,
            self._counters,
            self._publisher.publish,
            folder,
            self._cuts,
            self._start(plan),
            HookCalls() if self._rank else self._hooks,
            two_threads=not ranked,
        )
        share = plan.fraction_of_steps(self._world)
        member: PolicyLearner
        if ranked:
            place = self._addresses[_EXPERIENCE]
            group, met = rendezvous(
                self._life, welcome, plan.name, plan.ranks, place, device, run.stall_timeout, self._counters
            )
            member = DataParallelLearner(plan, share, source, context, rows_before, group=group, met=met)
        else:
            kind = LockstepLearner if run.lockstep else PolicyLearner
            curious, freezing = self._curiosity(plan, device), self._freezing(plan)
            member = kind(plan, share, source, context, rows_before, curious, freezing)
        member.refusals, member.frozen = self._life.vitals.refusals, plan.name in self._frozen
        path = self._mailbox_path(plan.name)
        last, found = self._publisher.add_policy(
            plan.name, member.published.manifest, path, plan.config.publish_mode, plan.config.wire_weights
        )
        member.resume(found, last)
        return member

    def _start(self, plan: TrainingPlan) -> bytes:
        """The file of what `plan`'s policy starts from, from the coordinator; empty where it starts from nothing."""
        start = plan.config.start if isinstance(plan, PolicyPlan) else None
        return b"" if start is None else self._fetch(start_name(plan.name), start.path)

    def _mailbox_path(self, policy: str) -> Path | None:
        """Where the weights lie from which another incarnation goes on; without shared memory, in the run's folder."""
        rank = f"~{self._rank}" if self._rank else ""
        name = f"{PREFIX}{self._welcome.run}-{policy}{rank}.weights"
        if self._run.transport == "tcp":
            return self._folder / name if self._folder is not None else None
        return memory_dir() / name


def main(life: WorkerProcess) -> None:
    """Joins, resumes, learns."""
    torch_setup.configure_torch()
    life.options = replace(life.options, name=requested_name(life.options.name))
    welcome, run = life.join("learner")
    life.watch(run.stall_timeout)
    world = parse_world(welcome.world)
    added = {name: told for name, told in welcome.roster.get("added", {}).items() if name in welcome.policies}
    plans = {**plan_learners(run, world), **plan_added(run, world, added)}
    learner = Learner(life, welcome, run, plans, world)
    try:
        learner.run()
    finally:
        learner.close()


command = worker_command("learner", main)

if __name__ == "__main__":
    freeze_startup_objects()
    run_to_end(command)
