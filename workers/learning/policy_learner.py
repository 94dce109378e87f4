"""One policy, or auxiliary, in a learner: segments in, updates, weights out. It knows nothing of sockets or of others.
Where segments come from is its source's affair: actors, or a dataset, with which it is done by itself.

stage, replay or sightings -> update -> publish (every `publish_interval` train steps) -> checkpoint (every so many
seconds)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.config.run import PolicyConfig, Run
from protocol.control.processors import available_cores
from protocol.errors import TrainingFault
from protocol.experience.ring_buffer import Ring
from protocol.memory.shared_file import Counters
from protocol.refusal_log import RefusalLog
from protocol.weights.manifest import Version
from protocol.weights.publisher import WeightSource
from workers.algorithms.build import build_update, try_algorithm
from workers.algorithms.common.batches import Learnable, Outcome, SegmentBatch
from workers.algorithms.common.gradient_threads import GradientThreads
from workers.algorithms.common.held_parts import HeldParts
from workers.algorithms.common.start_divergence import StartDivergence
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stream import StreamAlgorithm
from workers.learning.buffers.build import build_buffer
from workers.learning.buffers.replay_buffer import ReplayBuffer
from workers.learning.checkpoint_writer import CheckpointWriter, Trained
from workers.learning.curiosity import IntrinsicReward
from workers.learning.datasets.recorder import SegmentRecorder, begin
from workers.learning.datasets.replayed_run import open_update_log
from workers.learning.diagnostics.finite import FiniteWeights
from workers.learning.diagnostics.training_health import TrainingHealth
from workers.learning.diagnostics.value_bounds import ValueBounds
from workers.learning.league_publisher import LeaguePublisher
from workers.learning.source import SegmentSource
from workers.learning.starts import start_table, tell_start
from workers.learning.training_log import TrainingLog
from workers.metrics.hooks.calls import HookCalls
from workers.metrics.hooks.hook import BatchEvent, PolicyEvent, PublishEvent, UpdateEvent
from workers.metrics.step_time import StepClock
from workers.metrics.throughput import seconds_starved
from workers.planning.policy_plan import TrainingPlan
from workers.policies.build import build, published_weights
from workers.policies.export.start import put_in_place
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.networks.layers import RowEncoder
from workers.policies.networks.rnd_networks import RNDNetworks
from workers.policies.tensors.flat_weights import FlatWeights, flatten_
from workers.runtime.lockstep_checkpoints import LockstepCheckpoints
from workers.runtime.seeds import seed_of
from workers.runtime.torch_setup import Precision

log = logging.getLogger(__name__)

_FAULTS = 3
"""Updates in a row that may fail before the learner gives up."""


@dataclass(frozen=True, slots=True)
class LearnerContext:
    """Where a policy learns. `publish` gets its flat weights and their version."""

    run: Run
    incarnation: int
    device: torch.device
    counters: Counters
    publish: Callable[[str, WeightSource, Version], None]
    folder: Path | None = None
    cuts: LockstepCheckpoints | None = None
    start: bytes = b""
    """The file of what the policy starts from (starts.py); empty: from nothing."""
    hooks: HookCalls = field(default_factory=HookCalls)
    """Who is told."""
    two_threads: bool = False
    """Whether a second thread may compute half of each gradient, where that is faster."""


class PolicyLearner:
    """The learner's part for `plan.name`, whose actors make a `share` of the run's steps. `curious` adds to the rewards
    of a policy that is; `freezing` is a league's player's."""

    hurries = False
    """Whether replay takes in everything at once, without the updates that are owed for it: the run is stopped."""
    repeated = False
    """Whether its updates are made again by another process, to the bit: in lock-step, and from a record."""
    frozen = False
    """Whether it learns nothing: actors go on with its weights, and what they send is settled unread."""
    _rate: float | None = None
    """The learning rate that the run's roster has for it; None: none."""
    replaced = 0
    """The number of the roster's command that gave it the weights which it learns from; 0: none did."""
    second_try = True
    """Whether it may go back to what it was and learn on, where others share its process."""

    def __init__(
        self,
        plan: TrainingPlan,
        share: float,
        source: SegmentSource,
        context: LearnerContext,
        rows_before: int = 0,
        curious: IntrinsicReward | None = None,
        freezing: LeaguePublisher | None = None,
    ) -> None:
        run, counters, folder, incarnation = context.run, context.counters, context.folder, context.incarnation
        self.name, self.static, self.waits_for = plan.name, plan.static, "data"
        self._plan, self._run, self._counters, self._publish = plan, run, counters, context.publish
        self.repeated = self.repeated or plan.recorded
        self._clock = StepClock(counters)
        self._rows_expected, self._rows_here = max(1.0, run.horizon * share), max(1.0, run.end * share)
        arithmetic = Precision(run.precision, isinstance(plan.config, PolicyConfig) and plan.config.compile)
        if tried := try_algorithm(plan.interface, plan.config, arithmetic, context.device, self.repeated):
            log.info("event=algorithm policy=%s entry=%s", plan.name, tried)
        policy = build(plan.interface, plan.config, seed_of(run.seed, "weights", plan.name))
        put_in_place(policy, context.start)
        self.policy = policy.to(context.device)
        self.weights, self.published = flatten_(self.policy), published_weights(self.policy)
        if plan.interface.encoder is not None:
            log.info("event=encoder policy=%s encoder=%s", plan.name, plan.interface.encoder)
        self.update = build_update(self.policy, plan.config)
        self.update.arithmetic = arithmetic
        self._start, self._finite = start_table(BytesIO(context.start)), FiniteWeights(self.policy)
        self._held = HeldParts(self.policy, self.update.optimizer, plan.config)
        self._near = self._kept_near(context)
        self._threads = self._gradient_threads() if context.two_threads and not self.repeated else None
        bounds = ValueBounds.of(plan.config)
        rate, encoder = plan.config.learning_rate, RowEncoder.of(self.policy)
        self._health = TrainingHealth(plan.name, plan.interface, plan.layout, rate, counters, bounds, encoder)
        self._recorder: SegmentRecorder | None = None
        if plan.recorded:
            place = begin(run, plan, incarnation, folder)
            source = self._recorder = SegmentRecorder(source, plan.name, plan.layout, place, incarnation, counters)
        self._order = open_update_log(plan, run, incarnation, folder)
        self._source, self._curious, self.freezing = self._ordered(source, context), curious, freezing
        self._published_step = self._steps_counted = 0
        self._batch: Learnable | None = None
        """Taken for an update that is not settled yet."""
        self._rows_before = rows_before
        self.refusals = RefusalLog()
        """Whose counts `/metrics` tells, in a process that has one."""
        self._faults = self._withheld = 0
        self.version = Version(incarnation, 0)
        self.measured: dict[str, float] = {}
        """Of the last update, and the last batch that was looked at: launch/docs/reference/measures.md."""
        self.mean_return: float | None = None
        """Of the newest episodes of this policy, as far as is known: by it the best checkpoint is told."""
        self._evaluations: list[float | None] = []
        """What was heard last of its newest evaluation, once anything was: one of before this process began is old."""
        self._buffer = build_buffer(plan, run, self._source, counters, incarnation, context.device)
        self._replay = self._buffer if isinstance(self._buffer, ReplayBuffer) else None
        self._segments = 0 if self._replay is not None else plan.batch_segments
        """Whole segments that an update uses up."""
        self._initial = _copied(self.weights) if freezing is not None and freezing.fresh else None
        self._open_books(context, share)

    def _kept_near(self, context: LearnerContext) -> StartDivergence | None:
        """What the policy is kept near to: itself, as it started, in whatever life of the run."""
        plan, update = self._plan, self.update
        if not isinstance(plan.config, PolicyConfig) or plan.config.kl is None:
            return None
        assert isinstance(update, StreamAlgorithm)
        start = build(plan.interface, plan.config, 0)
        assert isinstance(start, ActorCritic | CentralActorCritic)
        put_in_place(start, context.start)
        update.near = StartDivergence(start.to(context.device), plan.config.kl)
        return update.near

    def _gradient_threads(self) -> GradientThreads | None:
        """What decides whether a second thread helps, where there may be a core for it and halves of minibatches are as
        good as the whole."""
        plan, update, counters = self._plan, self.update, self._counters
        if type(update) is not PPOUpdate or update.algorithm.entry is not None or update.near is not None:
            return None
        if available_cores() < 2 or self.weights.storage.device.type != "cpu":
            return None
        return GradientThreads(plan.name, update, lambda: seconds_starved(counters.snapshot(), plan.name))

    def _hold(self) -> None:
        """What of the policy is held, and how near to its start, by how far it is now."""
        self._held.hold(self._rows)
        if self._near is not None:
            self._near.fade(self._rows)

    def _open_books(self, context: LearnerContext, share: float) -> None:
        """What tells of it: its log, checkpoints, and hooks."""
        plan, run, folder, calls = self._plan, self._run, context.folder, context.hooks.of
        self._telling = TrainingLog(plan, run, folder, self._counters, self._buffer)
        kept = Trained(self.policy, self.update, self._replay)
        self._checkpoints = None if folder is None else CheckpointWriter(plan, run, folder, kept, self._counters, share)
        if self._checkpoints is not None:
            self._checkpoints.calls = calls("checkpoint")
        self._on_batch, self._on_update, self._on_publish = calls("batch"), calls("update"), calls("publish")
        self._hooks = context.hooks
        if plan.ranks == 1:  # of several each would go its own way
            self._hooks.control.rates[self.name] = self.set_learning_rate

    @property
    def progress(self) -> float:
        """How much of its schedules' part of the run this policy has received, or trained on: 0..1. Of a player that
        begins again and again, its part is what it learns from until it joins its league's library."""
        if self.freezing is not None and self.freezing.fresh:
            return self.freezing.progress(self._rows)
        return min(1.0, self._rows / self._rows_expected)

    @property
    def done(self) -> bool:
        """Whether a policy with a dataset has trained its part of the run; with actors it is they who decide."""
        return self.static and self._rows >= self._rows_here

    @property
    def _rows(self) -> int:
        """Rows received so far by all incarnations; of a dataset, rows trained on."""
        kind = "rows_trained" if self.static else "rows_received"
        return self._rows_before + int(self._counters[f"{kind}.{self.name}"])

    def resume(self, found: NDArray[np.uint8] | None, last: Version) -> None:
        """Continues from the newest checkpoint; without one from the last published weights `found`, with a fresh
        optimiser; without those from the initial ones. Versions go on after `last` in any case, and schedules where the
        rows received by all incarnations put them. One that is frozen keeps the weights `found` where the checkpoint is
        older than they."""
        self.version = Version(self.version.incarnation, self._restored(found, last))
        self._begin_here()
        self._tell("policy_start")

    def _restored(self, found: NDArray[np.uint8] | None, last: Version) -> int:
        """Puts in place what `resume` says; the version after which versions go on."""
        loaded = self._checkpoints.load() if self._checkpoints is not None else None
        number = last.version
        if loaded is not None:
            number, self.replaced = max(number, loaded.version), loaded.replaced
            self._rows_before = max(self._rows_before, loaded.rows)
            steps = self.update.train_steps
            if self.static:  # what was trained since the checkpoint is trained again
                self._counters.set(f"rows_learned.{self.name}", self._rows)
            log.info("event=resumed policy=%s from=checkpoint train_steps=%d version=%d", self.name, steps, number)
            if self.frozen and found is not None and last.version > loaded.version:  # it stays what it had become
                self.published.load(found)
        elif found is not None:
            self.published.load(found)
            log.info("event=resumed policy=%s from=last_published version=%d", self.name, last.version)
        self._begins(new=loaded is None and found is None)
        return number

    def _begins(self, new: bool) -> None:
        """As its first incarnation does, where it is `new`: what it starts from then is told."""
        self._health.new = new and not self._start
        if new and self._start:
            tell_start(self.name, self._start)

    def restart(self, found: NDArray[np.uint8] | None) -> None:
        """Goes back to the newest checkpoint, or to the last published weights `found` with a fresh optimiser, as when
        its process is started again; versions, the count of rows and what may be replayed go on. TrainingFault where
        there is neither."""
        loaded = None
        if self._checkpoints is not None and self._checkpoints.wait(self._run.learner_timeout):
            loaded = self._checkpoints.load(rows=False)
        self.replaced = self.replaced if loaded is None else loaded.replaced
        if loaded is None:
            if found is None:
                raise TrainingFault("no_weights_to_go_back_to", policy=self.name)
            self.published.load(found)
            self.update.optimizer.reset()
        self._faults = self._withheld = 0
        self._begin_here()

    def replace(self, data: bytes, number: int) -> None:
        """Learns on from the weights in `data` (workers/policies/export/start.py), without the momentum of those
        before, as command `number` of the roster says; versions, train steps, schedules and replay go on. It counts as
        a train step, so that the last checkpoint stays, and what those weights earned says nothing of these."""
        put_in_place(self.policy, data)
        self.update.optimizer.first.zero_()
        self.update.optimizer.steps += 1
        self.replaced, self.mean_return, self._evaluations = number, None, []
        log.info("event=weights_replaced policy=%s command=%d", self.name, number)
        self._begin_here()
        if self._checkpoints is not None:
            self._checkpoints.expire()

    def _begin_here(self) -> None:
        """With a publication, from which the next ones are counted."""
        self.freeze_if_due()
        self._hold()
        self._published_step = self._steps_counted = self._telling.logged_step = self.update.train_steps
        self.publish()

    def step(self) -> bool:
        """`learn`, and the publication that is due after it."""
        learned = self.learn()
        if learned and self.publication_due:
            self.publish()
        return learned

    def learn(self, outcome: Outcome | None = None) -> bool:
        """Takes in what has arrived and makes at most one update; False if there was too little data for one. Of an
        update that was computed together with others, of what `take` took and `checked_batch` gave, it is told the
        `outcome`, which is empty where no batch was given."""
        if outcome is None and not self.take():
            return False
        started = time.monotonic()
        if outcome is None and (batch := self.checked_batch()) is not None:
            began = time.monotonic()
            try:
                outcome = self.update.update(batch, self.progress)  # type: ignore[arg-type] # made for this mode
            except TrainingFault as fault:
                outcome = fault
            if self._threads is not None and isinstance(outcome, dict):
                outcome["gradient_threads"] = self._threads.count
                self._threads.updated(batch.rows, time.monotonic() - began)
        if outcome is not None and self._batch is not None:
            self.finish_update(outcome)
        self._counters.add(f"busy.{self.name}", time.monotonic() - started)
        return True

    def take(self) -> bool:
        """Takes in what has arrived; whether there is a batch for an update now."""
        if self.frozen:
            self._settle_unread()
        if self.done or self.frozen:
            return False
        if self._batch is not None:  # from before it was frozen
            return True
        started = time.monotonic()
        self._health.arrived(self._source.arrivals(self.name))
        if self.hurries and self._replay is not None:
            self._replay.fill(self.version, everything=True)
            return False
        self._buffer.fill(self.version)
        self._batch = self._buffer.next_batch(self.version, self.progress)
        if self._batch is None:
            self._health.on_no_data()
            self._no_batch()
            return False
        self._clock.begin()
        self._counters.add(f"busy.{self.name}", time.monotonic() - started)
        return True

    def _settle_unread(self) -> None:
        arrivals = self._source.arrivals(self.name)
        for arrival in arrivals:
            records = arrival.records
            if arrival.owned:
                self._source.release(self.name, records["slot"])
            self._counters.add(f"dropped.frozen.{self.name}", len(records))
            self._source.acknowledge(self.name, arrival, int(records["number"][-1]), len(records))
        if arrivals:
            arrivals.clear()
            self._source.flush_acks()

    def _ordered(self, source: SegmentSource, context: LearnerContext) -> SegmentSource:
        """Where the buffer finds what it is to take in next."""
        return source

    def _no_batch(self) -> None:
        """There is too little data for an update."""

    def prepare(self) -> None:
        """The next batch, as far as it can be made while the one that was taken is trained on."""
        self._buffer.prepare(self.version)

    def checked_batch(self) -> Learnable | None:
        """The batch that was taken, for an update; None if no update should see it, which is settled then."""
        batch = self._batch
        assert batch is not None
        self._hold()
        try:
            self._health.check(batch)
            for call in self._on_batch:
                call(BatchEvent(self.name, self.update.train_steps, batch.rows))
            if self._curious is not None and isinstance(batch, SegmentBatch):
                return self._curious.add_bonus(batch)
        except TrainingFault as fault:
            self.finish_update(fault)
            return None
        return batch

    def finish_update(self, outcome: Outcome) -> None:
        """What became of the update with the batch that was taken: its metrics, or why there was none; the third
        refusal in a row is raised."""
        batch, before = self._batch, self._steps_counted
        assert batch is not None
        self._batch = None
        self._count_steps()
        if isinstance(outcome, TrainingFault):
            self._refuse(batch, outcome)
        else:
            self._learned(batch, before, outcome)
        if self._order is not None:
            said = {} if isinstance(outcome, TrainingFault) else outcome
            self._order.write(int(self._counters[f"received.{self.name}"]), self.update.train_steps, said)

    def uses(self, ring: Ring) -> bool:
        """Whether `ring` may still be read."""
        return self._replay is not None and self._replay.uses(ring)

    def publish(self) -> None:
        """The present weights become the next version. If they are not finite the last ones stay; TrainingFault when
        that goes on."""
        started = time.monotonic()
        if not self._finite():
            self._withhold()
            return
        self._withheld = 0
        self.version = Version(self.version.incarnation, self.version.version + 1)
        self._publish(self.name, self.published.source(), self.version)
        self._published_step = self.update.train_steps
        self._counters.set(f"version.{self.name}", self.version.version)
        for call in self._on_publish:
            call(PublishEvent(self.name, self.version.version, self.update.train_steps))
        self._counters.add(f"busy.{self.name}", time.monotonic() - started)

    def _withhold(self) -> None:
        self._withheld += 1
        self._health.find("weights_not_finite", f"train_step={self.update.train_steps}")
        if self._withheld >= _FAULTS or not self.second_try:
            raise TrainingFault("weights_not_finite", policy=self.name, step=self.update.train_steps)

    def freeze_if_due(self) -> None:
        """In a league: joins the library when its time has come, and begins again if it is to."""
        freezing = self.freezing
        if freezing is None or not freezing.due(self._rows):
            return
        first = not freezing.count
        if isinstance(self.policy, RNDNetworks) or not self._finite():
            return
        freezing.freeze(self.policy, self.version, self.update.train_steps, self._rows)
        if self._initial is not None and not first:
            self.weights.load(self._initial)
            self.update.optimizer.reset()
            self.publish()

    def heard(self, mean_return: float | None, evaluation: float | None) -> None:
        """What its newest episodes earned, and its newest evaluation: one that ended just now speaks for the weights
        of now."""
        ended = evaluation is not None and self._evaluations not in ([], [evaluation])
        self.mean_return, self._evaluations = mean_return, [evaluation]
        if ended and self._checkpoints is not None and self.update.train_steps:
            self._checkpoints.evaluated = evaluation

    def save_if_due(self) -> None:
        """Hands a checkpoint over when its time has come; of one that is frozen at once."""
        checkpoints = self._checkpoints if self.update.train_steps else None
        if checkpoints is None:
            return
        if checkpoints.due(self._rows, self.mean_return) or (self.frozen and checkpoints.behind):
            self._save(checkpoints, 0.0)

    def save(self) -> None:
        """Hands a checkpoint over now, if there is anything to keep."""
        if self._checkpoints is not None and self.update.train_steps:
            self._save(self._checkpoints, 0.0)

    def _save(self, checkpoints: CheckpointWriter, seconds: float) -> None:
        if self._finite():  # or else the last good ones stay, for whoever resumes
            checkpoints.write(self.version, self._rows, self.mean_return, seconds, self.replaced)

    def finish(self) -> bool:
        """The last publication and checkpoint of the run; True when that is done."""
        if self._replay is not None and not self.frozen:
            self._replay.fill(self.version, everything=True)
        else:
            while self.step():  # whole batches are trained, the rest is held
                pass
        if self.frozen and not isinstance(self._buffer, ReplayBuffer):  # it has not looked since its last update
            self._counters.set(f"held.{self.name}", self._buffer.count + self._segments * (self._batch is not None))
        if self._rows and not self.update.train_steps:
            self._health.find("never_a_batch", f"rows={self._rows}")
        if self.update.train_steps > self._published_step:
            self.publish()
        if self._checkpoints is not None:
            self._save(self._checkpoints, self._run.learner_timeout)
        if self._recorder is not None:
            self._recorder.close()
        return True

    def close(self) -> None:
        """The last checkpoint is on disk, or was given time enough."""
        if self._checkpoints is not None:
            self._checkpoints.close(self._run.learner_timeout)
        if self._order is not None:
            self._order.close()
        if self._threads is not None:
            self._threads.close()
        self._tell("policy_end")

    def _tell(self, event: str) -> None:
        for call in self._hooks.of(event):
            call(PolicyEvent(self.name, self.version.version, self.update.train_steps))

    def set_learning_rate(self, rate: float) -> None:
        """Of the next updates, whatever the configuration says."""
        update: Any = self.update
        update.config = update.config.model_copy(update={"learning_rate": rate})
        if hasattr(update, "algorithm"):
            update.algorithm = update.algorithm.model_copy(update={"anneal_learning_rate": False})

    def obey(self, roster: Mapping[str, Any]) -> None:
        """What the run's roster says: its learning rate, where that is another one than it said before, and whether it
        learns. Where it ceases to, actors are given what it has learned."""
        rate, frozen = roster.get("rates", {}).get(self.name), self.name in roster.get("frozen", ())
        if rate is not None and rate != self._rate:
            self.set_learning_rate(rate)
        self._rate = rate
        if frozen == self.frozen:
            return
        self.frozen = frozen  # also where it can publish nothing
        log.info("event=%s policy=%s", "frozen" if frozen else "thawed", self.name)
        if frozen and self.update.train_steps > self._published_step:
            self.publish()

    def _refuse(self, batch: Learnable, fault: TrainingFault) -> None:
        self._counters.add(f"rejected.{self.name}", self._segments)
        if self._health.refused(batch):
            self._telling.keep(batch, str(fault), self.update.train_steps, self.version)
        self._failed(fault)

    def _failed(self, fault: TrainingFault) -> None:
        self._faults += 1
        who = {"policy": self.name, "update": self.update.train_steps, "in_a_row": self._faults}
        self.refusals.tell("update_refused", fault.kind, fault.coded, level=logging.ERROR, **who)
        if self._faults >= _FAULTS:
            raise fault

    def _learned(self, batch: Learnable, before: int, metrics: dict[str, float]) -> None:
        self._faults = 0
        if self._replay is not None and isinstance(self.update, ReplayAlgorithm) and self.update.priorities is not None:
            self._replay.learned(self.update.priorities)
        self._counters.add(f"trained.{self.name}", self._segments)
        self._counters.add(f"rows_trained.{self.name}", batch.rows)
        if self._curious is not None:
            metrics = {**metrics, **self._curious.measured}
        if self.static:
            self._counters.set(f"rows_learned.{self.name}", self._rows)
        self._told(metrics)
        due = self._telling.due(self.update.train_steps)
        if due or self._health.due:
            judged = {**metrics, "weight_delta": math.nan} if self._held.everything else metrics
            seen = {**self._health.analyse(batch, judged), **self._telling.queue_metrics(self._source)}
            self.measured.update(seen)
            if due:
                self._telling.log(before, self.update.train_steps, self.version, metrics, seen)
        for call in self._on_update:
            at = self.version.version, self.update.train_steps, self.progress, self.mean_return
            call(UpdateEvent(self.name, *at, dict(metrics)))

    def _told(self, metrics: dict[str, float]) -> None:
        """What an update said of itself."""
        self.measured.update(metrics)

    @property
    def publication_due(self) -> bool:
        """Whether so many updates were made that actors are to have them."""
        return self.update.train_steps - self._published_step >= self._plan.config.publish_interval

    def _count_steps(self) -> None:
        steps = self.update.train_steps
        self._counters.set(f"train_steps.{self.name}", steps)
        self._counters.add(f"steps_made.{self.name}", steps - self._steps_counted)
        self._clock.stepped()
        self._steps_counted = steps


def _copied(weights: FlatWeights) -> NDArray[np.uint8]:
    there = weights.source()
    return (there() if callable(there) else there).copy()
