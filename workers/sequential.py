"""The sequential reference: the same configuration in one process, without any queue.

    ( sync?  act  step  update* ) until all steps are made

The same seats, members and maths as the separate workers; only the way between them is a function call.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.config.yaml_file import read_run
from protocol.errors import ConfigurationError
from protocol.experience.shared_obs import SharedObs
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from protocol.weights.publisher import WeightSource
from workers import freeze_startup_objects
from workers.environments.lockstep_blocks import build_lockstep_blocks
from workers.environments.registry import make
from workers.evaluation.baseline_process import BaselineProcess
from workers.evaluation.periodic import PeriodicEvaluation
from workers.evaluation.scores import newest
from workers.learning.curiosity import IntrinsicReward
from workers.learning.datasets.replayed_run import ReplayedRun, load_replayed_run
from workers.learning.datasets.source import load_dataset
from workers.learning.device import choose_device
from workers.learning.lockstep_learner import LockstepLearner
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.report import LearnerReport
from workers.learning.source import SegmentSource
from workers.learning.starts import start_bytes, take_starts, told_starts
from workers.metrics.episode_returns import PARTS, WINDOWS
from workers.metrics.hooks.calls import DONE, ENDING, HookCalls
from workers.metrics.hooks.episodes import WatchedEnvironment, checked
from workers.metrics.hooks.run_events import RunEvents, Told
from workers.metrics.run_metrics import RunMetrics, check_trained
from workers.metrics.step_time import StepClock
from workers.planning.auxiliary_plan import AuxiliaryPlan, plan_auxiliaries
from workers.planning.fixed_policy_plan import plan_fixed
from workers.planning.policy_plan import PolicyPlan, TrainingPlan, plan_policies
from workers.planning.shared_observation_plan import plan_common
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import Sender
from workers.rollout.build import (
    ActorAssignment,
    Collectors,
    build_collectors,
    build_fixed_collectors,
    with_auxiliaries,
)
from workers.rollout.in_process_queue import InProcessQueue
from workers.rollout.inference import act_turn
from workers.rollout.lockstep import schedule_of
from workers.rollout.report import (
    ActorReport,
    BoundsReport,
    take_episodes,
    tell_first_episodes,
    update_environment_counters,
)
from workers.runtime import torch_setup
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.last_words import leave, run_to_end, tell_end, tell_failure, watch_user_code
from workers.runtime.logs import configure_logging
from workers.runtime.process import INCOMPLETE, StopRequested, lock_run_folder
from workers.runtime.seeds import seed_of
from workers.runtime.sole_process import SoleProcess
from workers.runtime.watchdog import install_stack_dump_signal, return_or_go_on

__all__ = ["Sequential", "command"]

log = logging.getLogger(__name__)

_NAME = ("actor-0", 1)
_OBSERVE_EVERY = 0.5


class Sequential:
    """The whole run in this process."""

    def __init__(self, run: Run, folder: Path, life: SoleProcess | None = None) -> None:
        if run.league is not None:
            raise ConfigurationError("league_needs_coordinator", key="league")
        if run.lockstep:  # the reference knows nothing of how many actors there might be
            run = run.model_copy(update={"actors": 1})
        self._run, self._folder, self._life = run, folder, life or SoleProcess()
        self._learning = threading.Lock()
        """Held while members change."""
        self._hooks, self._events = HookCalls(run, "sequential", folder), RunEvents(folder, first=True)
        inner = build_lockstep_blocks(run, 0) if run.lockstep else make(run.environment)
        self._environment = checked(inner, self._hooks.of("episode_end"))
        world = self._environment.world
        self._plans, fixed = plan_policies(run, world), plan_fixed(run, world)
        for plan in self._plans.values():
            _check(plan)
        take_starts(run, self._plans, folder)
        auxiliaries = plan_auxiliaries(run, self._plans)
        names, hand = [*self._plans, *auxiliaries], ActorAssignment.of(run, 0, _NAME)
        collectors = self._collectors = Collectors()
        for name, strategy in fixed.items():
            collectors.add(name, build_fixed_collectors(strategy, world, run.environment, run.seed, hand))
        sharing = plan_common(self._plans, world)
        self._common = None if sharing is None else sharing.writer(None)
        common = None if self._common is None else SharedObs(self._common.ring)
        self._bounds = BoundsReport(world, self._plans)
        members = list(run.environment.members or ())
        counted = ActorReport.names(names, members, fixed=[*fixed], bounded=self._bounds.places)
        self._actor_page = Counters(folder / "counters" / "actor-0.1", *counted)
        self._learner_page = Counters(folder / "counters" / "learner-0.1", *LearnerReport.names(names))
        self._hooks.count_in(self._learner_page)
        self._clock = StepClock(self._actor_page)
        self._published: dict[str, tuple[NDArray[np.uint8], Version]] = {}
        self._members: list[PolicyLearner] = []
        self._performers: dict[str, ActingPolicy] = {}
        channels: dict[str, Sender] = {}
        self._tapes: dict[str, ReplayedRun] = {}
        for each in (*auxiliaries.values(), *self._plans.values()):  # who consults others comes after them
            source: SegmentSource
            if run.replay:
                source = self._tapes[each.name] = load_replayed_run(each, run)
            elif each.static:
                source = load_dataset(each, self._learner_page)
            else:
                source = channels[each.name] = InProcessQueue(each, _NAME, self._actor_page, common)
            self._add_member(each, source, auxiliaries)
        for plan in self._plans.values() if run.actors and not run.replay else ():
            performer = self._performers[plan.name] = ActingPolicy(plan.interface, plan.config)
            sender = with_auxiliaries(plan, self._plans, auxiliaries, channels, self._common)
            collectors.add(plan.name, build_collectors(plan, world, performer, sender, run.seed, hand, self._common))
        if isinstance(self._environment, WatchedEnvironment):
            self._environment.policy_of = collectors.policy_of
        self._schedule = schedule_of(run, collectors.writing)
        self._books = RunMetrics(run, list(self._plans), folder, list(auxiliaries), fixed)
        self._watch = (
            None
            if run.evaluation is None
            else PeriodicEvaluation(run, run.evaluation, self._plans, folder, self._adopt, self._life.tick)
        )
        self._began = time.monotonic()
        self._parent = int(os.environ.get("ROOKERY_PARENT", "0"))

    def run(self) -> bool:
        """Until all steps are made; False if stopped before."""
        self._tell(self._events.begin())
        if self._run.replay:
            return self._learn_again()
        return self._act_and_learn() if self._run.actors else self._learn()

    def rescue(self) -> None:
        """Where the loop hangs, and another thread is to end this process: a summary of what was trained, if anything
        was, with its checkpoints unless it was just learning. The loop does not go on, should it come back."""
        if not any(member.update.train_steps for member in self._members):
            return
        try:
            if self._learning.acquire(blocking=False):
                for member in self._members:
                    member.finish()
                    member.close()
            self._books.write_summary(self._summary(complete=False))
        except Exception as fault:
            log.exception("event=not_rescued error=%s", type(fault).__name__)

    def _learn_again(self) -> bool:
        """What the learners of a recorded run learned, update by update."""
        for member in self._members:
            tape = self._tapes[member.name]
            while tape.advance() and not self._over:
                if not self._step(member):
                    raise ConfigurationError(
                        "replay_lacks_update",
                        file=self._run.replay,
                        step=member.update.train_steps,
                        policy=member.name,
                        key="replay",
                    )
            self._finish(member)
            self._observe(0)
        return not self._over

    def _learn(self) -> bool:
        """Without actors: until all members are done with their datasets."""
        observed = -math.inf
        while not (done := all(member.done for member in self._members)) and not self._over:
            for member in self._members:
                self._step(member)
            now = time.monotonic()
            if now - observed >= _OBSERVE_EVERY:
                observed = now
                self._observe(0)
        for member in self._members:
            self._finish(member)
        self._observe(0, last=True)
        return done or self._due

    def _act_and_learn(self) -> bool:
        environment, seats, run = self._environment, self._collectors.seats, self._run
        turn = environment.reset(seed_of(run.seed, "environment", *ActorAssignment.of(run, 0, _NAME).seed_scope))
        env_steps = agent_steps = turns = counted = 0
        self._clock.begin()
        observed = -math.inf
        while agent_steps < run.end or self._schedule.mid_turn(turn):
            if (turn.env_steps and not turn.group) or not turns:
                self._sync(turns)
                turns += 1
            if self._common is not None and turn.common is not None:
                self._common.write(turn.common)
                if self._common.turns is not None:  # who is away for long must not hold up memory
                    for seat in self._collectors.writing:
                        seat.flush(_never)
            actions = act_turn(seats, turn, _never)
            agent_steps += sum(map(len, actions))
            turn = environment.step(actions)
            self._bounds.look(turn, self._actor_page)
            env_steps += turn.env_steps
            self._actor_page.set("env_steps", env_steps)
            self._actor_page.set("agent_steps", agent_steps)
            self._clock.stepped()
            self._life.vitals.tick()
            if agent_steps * WINDOWS >= run.end > (agent_steps - sum(map(len, actions))) * WINDOWS:
                for played in (seat for of_policy in self._collectors.of.values() for seat in of_policy):
                    played.episodes.close_opening()
            for member in self._members:
                while self._step(member):
                    pass
            if agent_steps - counted >= run.end // PARTS:
                counted = agent_steps
                self._count_episodes(agent_steps)
            now = time.monotonic()
            if now - observed >= _OBSERVE_EVERY:
                observed = now
                self._observe(agent_steps)
                if self._over:
                    break
            if self._life.stopping.is_set():
                break
        self._actor_page.set("unfinished_steps", self._collectors.open_rows)
        self._observe(agent_steps)  # what the last episodes earned
        for member in self._members:
            self._finish(member)
        self._observe(agent_steps, last=True)
        return agent_steps >= run.end or self._due

    def finish(self, complete: bool, lock: int | None = None) -> None:
        """The summary; checkpoints are on disk before it, and baselines in it when those are played, as a process that
        may end as it likes does now, without the `lock` on the run's folder. TrainingFault if nothing was trained."""
        for member in self._members:
            member.close()
        summary = self._summary(complete)
        self._books.write_summary(summary)  # before the world is closed, which may never end
        self._life.rescue = _never
        return_or_go_on(
            "sequential", self._close_worlds, lambda: leave(_told(lambda: self._end(complete, summary, lock)))
        )
        self._end(complete, summary, lock)

    def _close_worlds(self) -> None:
        self._environment.close()
        if self._watch is not None:
            self._watch.close()

    def _end(self, complete: bool, summary: dict[str, Any], lock: int | None) -> bool:
        """Baselines, and the books' end; `complete`."""
        self._life.rest()
        if complete:
            baselines = BaselineProcess(self._run, self._folder, self._began, lock)
            baselines.run_ended()
            while baselines.left and not self._life.stopping.is_set():
                baselines.look(_OBSERVE_EVERY)
            baselines.close()
            self._books.write_summary(summary | baselines.summary(self._run.policy_of(self._environment.world)))
        self._tell(self._events.end())
        self._books.close(summary["complete"])
        if complete:
            check_trained(summary)
        return complete

    @property
    def _over(self) -> bool:
        orphaned = bool(self._parent) and os.getppid() != self._parent
        return self._life.stopping.is_set() or orphaned or self._due or bool(self._hooks.orders())

    @property
    def _due(self) -> bool:
        """Whether it ends before its last step, as one that has reached its end."""
        late = self._run.seconds is not None and self._books.seconds >= self._run.seconds
        return late or self._books.target_reached or self._hooks.orders().get(ENDING) == DONE

    def _step(self, member: PolicyLearner) -> bool:
        """Whether there was a batch to learn from."""
        with self._learning:
            learned = member.step()
            if learned:
                member.save_if_due()
        self._life.vitals.tick()
        return learned

    def _finish(self, member: PolicyLearner) -> None:
        """The last of what it learns, publishes and keeps."""
        with self._learning:
            member.finish()
        self._life.vitals.tick()

    def _summary(self, complete: bool) -> dict[str, Any]:
        pages = ({_NAME: self._actor_page.snapshot()}, {("learner-0", 1): self._learner_page.snapshot()})
        clean = {_NAME, ("learner-0", 1)}
        missing = {"baselines": {}, "baselines_missing": "the run was stopped"}
        said = {"evaluations": newest(self._folder), "starts": told_starts(self._folder, self._plans)}
        return self._books.summary(*pages, clean, {}, missing, complete) | said

    def _add_member(self, plan: TrainingPlan, source: SegmentSource, auxiliaries: Mapping[str, AuxiliaryPlan]) -> None:
        run, device = self._run, choose_device(self._run, len(self._members))
        start = start_bytes(self._folder, plan.name)
        context = LearnerContext(
            run, 1, device, self._learner_page, self._publish, self._folder, None, start, self._hooks
        )
        kind = LockstepLearner if run.lockstep else PolicyLearner
        share = plan.fraction_of_steps(self._environment.world)
        member = kind(plan, share, source, context, 0, self._curious(plan, auxiliaries, device))
        member.resume(None, Version(0, 0))
        self._members.append(member)

    def _curious(
        self, plan: TrainingPlan, auxiliaries: Mapping[str, AuxiliaryPlan], device: torch.device
    ) -> IntrinsicReward | None:
        if plan.curiosity is None:
            return None
        name = plan.curiosity.auxiliary
        coefficient = plan.curiosity.coefficient
        curious = IntrinsicReward(plan.name, auxiliaries[name], coefficient, device, self._learner_page)
        curious.adopt = partial(self._adopt, name)
        return curious

    def _adopt(self, name: str, out: NDArray[np.uint8], have: Version) -> Version | None:
        """The newest weights of `name`, if they are newer than `have`."""
        weights, version = self._published[name]
        if version <= have:
            return None
        out[:] = weights
        return version

    def _publish(self, policy: str, weights: WeightSource, version: Version) -> None:
        self._published[policy] = (weights() if callable(weights) else weights.copy(), version)

    def _sync(self, turns: int) -> None:
        wanted = self._schedule.required_version(turns)
        for member in self._members if wanted else ():
            while member.version.version < wanted:
                self._step(member)
        for name, plan in self._plans.items():
            if wanted or not turns or self._schedule.looks(turns, plan.config.sync_interval):
                self._performers[name].adopt(partial(self._adopt, name))

    def _count_episodes(self, agent_steps: int) -> None:
        """In the part of the run that they ended in, however fast this machine makes its steps."""
        tell_first_episodes(self._actor_page, self._collectors.of)
        for policy, told in take_episodes(self._collectors.of).items():
            self._books.episodes(policy, agent_steps, *told)
        self._books.settle(agent_steps, {_NAME: self._actor_page.snapshot()})

    def _observe(self, agent_steps: int, last: bool = False) -> None:
        """Brings the books up to date; evaluates where that is due, or is the `last` time."""
        update_environment_counters(self._actor_page, self._environment, self._collectors.policy_of)
        self._actor_page.set("fixed_steps", self._collectors.fixed_steps)
        self._count_episodes(agent_steps)
        me = [
            {
                "name": "sequential",
                "role": "sequential",
                "state": "running",
                "pid": os.getpid(),
                "silent": 0.0,
                "incarnation": 1,
            }
        ]
        measured = {f"{member.name}.{k}": v for member in self._members for k, v in member.measured.items()}
        pages = {_NAME: self._actor_page.snapshot()}, {("learner-0", 1): self._learner_page.snapshot()}
        if self._watch is not None:
            if not self._life.stopping.is_set():
                with suppress(StopRequested):
                    self._watch.run_if_due(self._books.steps_done, last)
            measured |= self._watch.measured
        self._books.observe(*pages, me, {}, measured)
        names = [member.name for member in self._members]
        returns, evaluations = self._books.mean_returns(names), self._books.mean_evaluations(names)
        for member in self._members:
            member.heard(returns.get(member.name), evaluations.get(member.name))
        self._life.show(self._books.view)
        self._tell(self._events.look(self._books.view))

    def _tell(self, told: Iterable[Told]) -> None:
        for name, event in told:
            for call in self._hooks.of(name):
                call(event)


def _check(plan: PolicyPlan) -> None:
    """What can only be learned elsewhere is refused."""
    if plan.ranks > 1:
        raise ConfigurationError("sequential_with_ranks", policy=plan.name, value=plan.ranks, key="policy.ranks")
    if plan.config.compile:
        raise ConfigurationError("sequential_with_compile", policy=plan.name, key="policy.compile")


def _told(body: Callable[[], bool]) -> int:
    """The exit code of a run that `body` makes, which returns whether it is complete; how that ended is said."""
    try:
        complete = body()
    except Exception as fault:
        return tell_failure("sequential", fault)[1]
    tell_end("sequential")
    return 0 if complete else INCOMPLETE


def _never() -> None:
    """Nothing waits here."""


@click.command(
    name="sequential",
    help="The whole of CONFIG (a YAML file) in one process; one line of JSON a moment.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="The run's folder.")
def command(config: Path, run_dir: Path) -> None:
    """Command line of the sequential reference."""
    torch_setup.configure_torch()
    add_cwd_to_path()
    life = SoleProcess()
    life.take_stdout()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, life.stop)
    watch_user_code()
    install_stack_dump_signal()

    def body() -> bool:
        run, folder = read_run(config), run_dir.resolve()
        lock = lock_run_folder(run, folder)
        configure_logging("sequential", run, folder)
        life.watch(run)
        sequential = Sequential(run.anchored(), folder, life)
        life.rescue = sequential.rescue
        complete = sequential.run()
        sequential.finish(complete, lock)
        os.close(lock)
        return complete

    sys.exit(_told(body))


if __name__ == "__main__":
    freeze_startup_objects()
    run_to_end(command)
