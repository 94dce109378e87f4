"""The actor: steps environments, runs the policies of all agents in them, writes each agent's experience in place.

    join -> first weights -> ( adopt newer weights?  act  step ) until the quota is reached -> drain -> leave

In flows: weights of every policy. Out flows: one ring of segments a policy, counters and episode returns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.control.file_fetch import fetching
from protocol.errors import ConfigurationError, SharedMemoryError
from protocol.experience.shared_obs import SharedObsWriter
from protocol.memory.shared_file import Counters
from protocol.messages.core import Status, Welcome
from protocol.spaces import parse_world
from workers import freeze_startup_objects
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.lockstep_blocks import build_lockstep_blocks
from workers.environments.registry import make
from workers.environments.simulators import EXTERNAL
from workers.environments.simulators.endpoint import simulator_endpoint
from workers.environments.simulators.simulator_settings import environment_for_actor
from workers.evaluation.policy_sync import SyncedPolicy
from workers.league.actor_league import ActorLeague
from workers.league.pool_cache import PoolCache
from workers.learning.device import acting_device
from workers.metrics.hooks.calls import HookCalls
from workers.metrics.hooks.episodes import WatchedEnvironment, checked
from workers.planning.auxiliary_plan import AuxiliaryPlan, plan_auxiliaries
from workers.planning.fixed_policy_plan import plan_fixed
from workers.planning.league_plan import LeaguePlan, plan_league
from workers.planning.policy_plan import PolicyPlan, TrainingPlan, plan_added, plan_policies
from workers.planning.shared_observation_plan import plan_common
from workers.policies.build import build, published_weights
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.build import (
    ActorAssignment,
    Collectors,
    build_collectors,
    build_fixed_collectors,
    with_auxiliaries,
)
from workers.rollout.handover import AgentHandovers
from workers.rollout.inference import act_turn
from workers.rollout.lockstep import ActorCheckpoint, Progress, schedule_of
from workers.rollout.report import ActorReport, BoundsReport, update_environment_counters
from workers.rollout.stacked_inference import StackedInference, build_stacked_inference
from workers.rollout.transport import ActorTransport
from workers.runtime import torch_setup
from workers.runtime.last_words import run_to_end
from workers.runtime.lockstep_checkpoints import checkpoints_of
from workers.runtime.process import StopRequested, WorkerProcess, run_dir_of, worker_command
from workers.runtime.seeds import seed_of
from workers.runtime.watchdog import turn_seconds

__all__ = ["Actor", "main"]

log = logging.getLogger(__name__)

_PAUSED_SLEEP = 0.05


class Actor:
    """One actor process: an environment of many copies, a seat for each agent, a way out for each policy."""

    def __init__(self, life: WorkerProcess, welcome: Welcome, environment: CheckedEnvironment, run: Run) -> None:
        self._life, self._welcome, self._run, self._environment = life, welcome, run, environment
        self._quota = -(-run.end // run.actors) if run.lockstep else welcome.quota
        world, folder = environment.world, run_dir_of(welcome)
        known, self._roster = plan_policies(run, world), welcome.roster
        over, added = self._roster.get("over", ()), self._roster.get("added", {})
        plans = known | plan_added(run, world, {name: told for name, told in added.items() if name not in over})
        plans = {name: plan for name, plan in plans.items() if name not in over}
        auxiliaries, fixed, league = plan_auxiliaries(run, plans), plan_fixed(run, world), plan_league(run, world)
        self._plans: dict[str, TrainingPlan] = {**plans, **auxiliaries}
        self._bounds = BoundsReport(world, known)
        self.counters = self._open_counters([*self._plans], [*fixed], league)
        device = acting_device(run, welcome.index)
        self._performers = {name: ActingPolicy(plan.interface, plan.config, 0, device) for name, plan in plans.items()}
        manifests = {name: performer.manifest for name, performer in self._performers.items()}
        for name, one in auxiliaries.items():  # nobody here acts by its weights: they tell where its learner is
            manifests[name] = published_weights(build(one.interface, one.config, 0)).manifest
        common = plan_common(plans, world)
        self._transport = ActorTransport(life, welcome, run, self._plans, manifests, common, self.counters)
        self._silent = frozenset(auxiliaries)
        self._sync_intervals = {name: plan.config.sync_interval for name, plan in plans.items()}
        hand = self._hand = ActorAssignment.of(run, welcome.index, (welcome.name, welcome.incarnation))
        collectors = self._collectors = Collectors()
        for name, strategy in fixed.items():
            collectors.add(name, build_fixed_collectors(strategy, world, run.environment, run.seed, hand))
        learning = self._first_seats(known, plans, auxiliaries)
        for name, seats in learning.items():
            collectors.add(name, seats)
        agents = {agent.name: number for number, agent in enumerate(world.agents)}
        rooms = {name: plan.most_seats for name, plan in plans.items()}
        self._handovers = AgentHandovers(collectors, learning, rooms, agents, self._seats_of)
        self._stacked: list[str] = []
        self._joint: StackedInference | None = None
        self._stack_inference()
        self._league: ActorLeague | None = None
        if league is not None:
            newest = {name: SyncedPolicy(plans[name], self._performers[name]) for name in league.players}
            library = folder or self._policy_cache()
            self._league = ActorLeague(league, run, world, hand, newest, learning, library, self.counters)
            collectors.seats |= self._league.seats
        self._schedule = schedule_of(run, collectors.writing)
        cuts = checkpoints_of(run, [*plans], folder)
        self._cut = None if cuts is None else ActorCheckpoint(cuts, welcome.index, environment, collectors.seats)
        self._report = ActorReport(
            self.counters,
            self._quota,
            self._performers,
            self._transport.subscribers,
            collectors.of,
            collectors.idle,
        )
        if isinstance(environment, WatchedEnvironment):
            environment.policy_of = collectors.policy_of
            environment.homes = () if league is None else league.homes
        life.vitals.bind(lambda: self._report.state, self.counters, self._report.measured)

    def run(self) -> None:
        """Acts until the quota is reached or the run ends; then sees to it that everything finished has arrived."""
        self._life.report(self._report.snapshot)
        self._report.state = "waiting"
        self._prepare()
        self._report.state = "acting"
        seats, environment = self._collectors.seats, self._environment
        log.info("event=acting quota=%d agents=%d copies=%d", self._quota, len(seats), environment.copies)
        answer = environment.preview_actions if environment.wants_preview else None
        try:
            turn, done = self._begin()
            while done.agent_steps < self._quota or self._schedule.mid_turn(turn):
                if (not turn.group and (turn.env_steps or not turn.present)) or not done.turns:
                    self._adopt_newer_weights(done)
                    self._follow_status()
                    done.turns += 1
                if self._transport.common is not None and turn.common is not None:
                    self._write_shared_observations(self._transport.common, turn.common)
                if self._league is not None:
                    turn = self._league.begin(turn, environment.flush_ends)
                actions = act_turn(seats, turn, self._check, self._joint, answer)  # ships the segments that are full
                turn = environment.step(actions)
                self._count(turn, sum(map(len, actions)), done)
                self._pause()
                if self._life.must_stop or self._transport.drain_by is not None:
                    break
        except StopRequested:  # while a turn waited for credit: what is finished has still to arrive
            log.info("event=interrupted reason=told to end in the middle of a turn")
        self._report.state = "draining"
        self._drain()

    def close(self) -> None:
        """Lets go of sockets and memory."""
        self._transport.close()
        if self._league is not None:
            self._league.close()
        self._life.close_world(self._environment.close)

    def _prepare(self) -> None:
        """Weights of every policy, opponents of a league, and what an earlier incarnation left to be sent."""
        playing = {name: one for name, one in self._performers.items() if name in self._collectors.of}
        self._transport.first_weights(playing, self._check_early)
        self._on_status(self._transport.refresh_routes())
        while self._league is not None and not self._league.ready:  # the first members are there with the first weights
            self._check_early()
            time.sleep(_PAUSED_SLEEP)
        self._transport.resend_inherited(self._check_early)

    def _begin(self) -> tuple[Turn, Progress]:
        """The first turn and what was done before it: that of a cut of lock-step, where there is one."""
        self._life.vitals.idle()  # to begin may take a world minutes
        turn = self._environment.reset(seed_of(self._run.seed, "environment", *self._hand.seed_scope))
        there = None if self._cut is None else self._cut.load(self._check)
        if there is not None:
            self.counters.set("resumed_steps", there[1].agent_steps)
        self._report.begin(first=self._welcome.incarnation == 1 or self._schedule.begins_anew)
        return there or (turn, Progress())

    def _count(self, turn: Turn, acted: int, done: Progress) -> None:
        """A turn was made, in which agents acted so often."""
        done.env_steps, done.agent_steps = done.env_steps + turn.env_steps, done.agent_steps + acted
        self._bounds.look(turn, self.counters)
        self._report.count(turn.env_steps, acted)
        self._life.vitals.tick()

    def _write_shared_observations(self, writer: SharedObsWriter, common: NDArray) -> None:
        """What all agents see of this turn is written once."""
        writer.write(common)
        if writer.turns is not None:  # who is away for long must not hold up memory
            for seat in self._collectors.writing:
                seat.flush(self._check)

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

    def _adopt_newer_weights(self, done: Progress) -> None:
        """Where they are due; those of a round of lock-step are waited for."""
        wanted = self._schedule.required_version(done.turns)
        if self._transport.wait_for_version(wanted, self._performers, self._check) and self._cut is not None:
            self._count_environment()  # what was told before a cut is not told again behind it
            self._cut.write_if_due(wanted - 2, done)
        for name, interval in self._sync_intervals.items():
            if self._schedule.looks(done.turns, interval):
                self._performers[name].adopt(self._transport.subscribers[name].adopt)

    def _follow_status(self) -> None:
        """Where the coordinator has answered: the learners' present addresses; tells the next heartbeat what is new."""
        client = self._life.client
        if client is not None and client.changed.is_set():
            client.changed.clear()
            self._report.collect()
            self._report.environment = self._count_environment()
            for seat in self._collectors.writing:
                seat.flush(self._check)
            self._transport.flush(self._silent)
            self._on_status(self._transport.update_routes())
            self._follow_roster()

    def _check(self) -> None:
        """While waiting for credit: follow a learner that moved; raises Stop if told to end, or if the time for
        draining is over."""
        self._life.vitals.tick()
        self._on_status(self._transport.update_routes())
        self._environment.poll()
        self._life.check()
        if self._transport.overdue:
            raise StopRequested

    def _check_early(self) -> None:
        """Before the first step, when there is nothing to drain."""
        self._check()
        if self._transport.drain_by is not None:
            raise StopRequested

    def _on_status(self, status: Status | None) -> None:
        """What the coordinator says of agents, of the league, and of which worlds are to be played."""
        if status is not None:
            self._roster = status.view.get("roster", self._roster)
        if status is not None and self._league is not None:
            self._league.update(status.view)
        if status is not None and status.view.get("curriculum"):
            self._environment.set_curriculum(status.view["curriculum"])

    def _drain(self) -> None:
        self._life.vitals.idle()
        self._report.collect()
        self._transport.drain()
        self.counters.set("unfinished_steps", self._collectors.open_rows)
        self._count_environment()

    def _count_environment(self) -> dict[str, float]:
        whose, league = self._collectors.policy_of, self._league is not None
        return update_environment_counters(self.counters, self._environment, whose, league)

    def _policy_cache(self) -> PoolCache:
        """Where the league's library is, if not in the run's folder."""
        life = self._life
        assert life.client is not None
        return PoolCache(self._welcome.run, fetching(life.context, life.client), self.counters, self._run.actor_timeout)

    def _seats_of(self, policy: str, agent: int) -> dict[tuple[int, int], AgentCollector]:
        """Those in which it plays an agent that it is given."""
        plan, seed = self._plans[policy], seed_of(self._run.seed, "given", policy)
        assert isinstance(plan, PolicyPlan)
        parts = self._performers[policy], self._transport.senders[policy], seed, self._hand
        return build_collectors(plan, self._environment.world, *parts, given=agent)

    def _first_seats(
        self, known: Mapping[str, PolicyPlan], plans: Mapping[str, PolicyPlan], auxiliaries: Mapping[str, AuxiliaryPlan]
    ) -> dict[str, dict[tuple[int, int], AgentCollector]]:
        """By policy those of the agents that it has in the configuration, of which all are `known`, unless it was
        retired: then who was given the agent plays it from the beginning. One that is in `plans` still sends what an
        actor of this name before had finished."""
        senders, common, world = self._transport.senders, self._transport.common, self._environment.world
        found: dict[str, dict[tuple[int, int], AgentCollector]] = {name: {} for name in plans}
        for name, plan in known.items():
            if name not in self._roster.get("retired", ()):
                sender = with_auxiliaries(plan, plans, auxiliaries, senders, common)
                parts = self._performers[name], sender, self._run.seed, self._hand, common
                found[name] |= build_collectors(plan, world, *parts)
                continue
            for agent in plan.agents:
                policy = self._roster["agents"][world.agents[agent].name]
                found[policy] |= self._seats_of(policy, agent)
        return {name: seats for name, seats in found.items() if seats}

    def _follow_roster(self) -> None:
        """Policies that joined the run are opened, agents that were given to others go over, and who was retired goes
        once all that it had is acknowledged."""
        roster, retired = self._roster, self._roster.get("retired", ())
        for name, told in roster.get("added", {}).items():
            if name not in self._plans and name not in retired:
                self._open(name, told)
        for name, performer in self._performers.items():
            if performer.adopted:
                self._handovers.admit(name, self._plans[name].most_seats)
        self._handovers.follow(roster.get("agents", {}))
        for name in [name for name in retired if name in self._plans]:
            if self._handovers.idle(name) and self._transport.release(name):
                self._handovers.forget(name)
                for table in (self._plans, self._performers, self._sync_intervals):
                    del table[name]
                log.info("event=policy_released policy=%s", name)
        self._report.released = [name for name in retired if name not in self._plans]
        self._stack_inference()

    def _stack_inference(self) -> None:
        """Of those who play now, those of one kind act together."""
        playing = {seat.performer for seat in self._collectors.seats.values() if isinstance(seat, AgentCollector)}
        performers = {name: performer for name, performer in self._performers.items() if performer in playing}
        if [*performers] != self._stacked:
            self._stacked, self._joint = [*performers], build_stacked_inference(performers, self._run)

    def _open(self, name: str, told: Mapping[str, Any]) -> None:
        """Ways and counters of a policy that joined the run. Where there is no room for them it is tried again."""
        run = self._run
        plan = plan_added(run, self._environment.world, {name: told})[name]
        whole, sums = ActorReport.names([name], [*(run.environment.members or ())])
        performer = ActingPolicy(plan.interface, plan.config, 0, acting_device(run, self._welcome.index))
        try:
            self.counters.extend([one for one in (*whole, *sums) if one not in self.counters.names])
            self._transport.open(plan, performer.manifest)
        except (SharedMemoryError, OSError) as fault:
            log.warning("event=policy_not_opened policy=%s error=%r", name, str(fault))
            return
        self._plans[name], self._sync_intervals[name] = plan, plan.config.sync_interval
        self._performers[name] = performer
        log.info("event=policy_opened policy=%s", name)

    def _open_counters(self, names: list[str], fixed: list[str], league: LeaguePlan | None) -> Counters:
        run_dir = run_dir_of(self._welcome)
        name = f"{self._welcome.name}.{self._welcome.incarnation}"
        members = list(self._run.environment.members or ())
        whole, sums = ActorReport.names(names, members, self._environment.counters, fixed, self._bounds.places)
        if league is not None:
            games, margins = league.counters()
            whole, sums = [*whole, *games], [*sums, *margins]
        return Counters(run_dir / "counters" / name if run_dir else None, whole, sums)


def main(life: WorkerProcess) -> None:
    """Joins, makes the environment, acts."""
    torch_setup.configure_torch()
    welcome, run = life.join("actor")
    run = run.anchored()
    life.watch(turn_seconds(run))
    where = environment_for_actor(run, welcome.index)
    lent = simulator_endpoint(life, welcome) if where.id == EXTERNAL else None
    hooks = HookCalls(run, welcome.name, run_dir_of(welcome))
    life.orders = hooks.orders
    inner = build_lockstep_blocks(run, welcome.index) if run.lockstep else make(where, outside=lent)
    environment = checked(inner, hooks.of("episode_end"))
    if environment.world != parse_world(welcome.world):
        raise ConfigurationError("actor_world_differs", environment=run.environment.id)
    actor = Actor(life, welcome, environment, run)
    hooks.count_in(actor.counters)
    try:
        actor.run()
    finally:
        actor.close()


command = worker_command("actor", main)

if __name__ == "__main__":
    freeze_startup_objects()
    run_to_end(command)
