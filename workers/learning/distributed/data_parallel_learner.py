"""A member that is one rank of its policy: the others train it as well, on what their actors made.

receive -> ask -> ( all have asked ) -> one update of all -> publish, each to its own actors; the first rank saves

An update begins when every rank has a batch. A rank without living actors takes part with an empty one, and so the
others need not wait for it. At the end all go on until none has a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.errors import TrainingFault
from protocol.messages.core import Route
from protocol.weights.manifest import Version
from workers.algorithms.common.batches import Outcome, SegmentBatch, update_each
from workers.algorithms.ppo import PPOUpdate
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.distributed.process_group import ProcessGroup, RankLost
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan

log = logging.getLogger(__name__)

_PATIENCE = 0.002
"""Seconds that an answer is waited for before the learner looks at its sockets again."""
_HAS, _ROWS, _ENDS, _SUM = range(4)
"""What ranks tell each other: whether there is a batch, rows received, whether this is the end, a sum of weights."""


class DataParallelLearner(PolicyLearner):
    """`group`: all ranks of the policy, whose learners `met` as these incarnations. The others as for any
    member; the context has a folder only for the first rank."""

    def __init__(
        self,
        plan: TrainingPlan,
        share: float,
        source: SegmentSource,
        context: LearnerContext,
        rows_before: int = 0,
        *,
        group: ProcessGroup,
        met: Mapping[str, int],
    ) -> None:
        super().__init__(plan, share, source, context, rows_before)
        assert isinstance(self.update, PPOUpdate)
        self.update.ranks = self._group = group
        self._given: SegmentBatch | None = None
        """A batch that waits for the others'."""
        self._asked_with: SegmentBatch | None = None
        self._all_rows = 0
        self._ended = self._all_end = False
        self._met, self._heard = met, set[str]()
        self.attended = True
        """Whether an actor lives whose segments come here."""

    @property
    def _rows(self) -> int:
        """Rows received so far by all incarnations of all ranks, as of the last update."""
        return self._all_rows

    @property
    def _own_rows(self) -> int:
        return self._rows_before + int(self._counters[f"rows_received.{self.name}"])

    def resume(self, found: NDArray[np.uint8] | None, last: Version) -> None:
        """As any member, on the first rank, whose weights, moments and random state all others take over."""
        before = self._rows_before
        first = self._group.rank == 0
        version = self._restored(found, last) if first else last.version
        told = self._group.gather(torch.tensor([version, self._rows_before], dtype=torch.float64))
        at_least, self._rows_before = self._rows_before, before
        rows = self._group.gather(torch.tensor([float(before)], dtype=torch.float64)).sum()
        if first:  # what a ledger that is gone knew is in the checkpoint
            self._rows_before += max(0, at_least - int(rows))
        self._all_rows = max(int(rows), int(told[0, 1]))
        self._align()
        # of the first rank, which publishes: by it all others know what was published
        self.version = Version(next(iter(self._met.values())), int(told[:, 0].max()))
        self._begin_here()
        self._tell("policy_start")

    def learn(self, outcome: Outcome | None = None) -> bool:
        """Takes in what has arrived; makes an update as soon as all ranks can."""
        self._fill()
        if not self._group.poll_ready:
            if self._given is None and self.attended:
                return False
            self._ask(ends=False)
        return self._or_saved(lambda: self._agree(_PATIENCE))

    def finish(self) -> bool:
        """Once no rank has a batch any more, the last publication and checkpoint; RankLost if others do not come to
        their end."""
        return self._or_saved(self._finish)

    def _finish(self) -> bool:
        end = time.monotonic() + 2 * self._run.learner_timeout  # others may drain for as long as one of these
        while not self._ended:
            self._fill()
            if not self._group.poll_ready:
                self._ask(ends=True)
            if self._agree(0.1):
                if self.publication_due:
                    self.publish()
                if self._all_end:
                    end = time.monotonic() + self._run.learner_timeout
            if time.monotonic() > end:
                raise RankLost("ranks_ended_apart", policy=self.name)
        self.attended = True  # nobody answers any more
        done = super().finish()
        if self._checkpoints is not None:
            self._checkpoints.wait(self._run.learner_timeout)
        self._group.gather(torch.ones(1))  # who ended before the first rank has saved could not begin again with it
        return done

    def check_peers(self, routes: Sequence[Route]) -> None:
        """RankLost when another rank's learner is no member any more, or a later incarnation of it is: a process whose
        machine is cut off ends no connection."""
        alive = {route.learner: route.incarnation for route in routes if route.policy == self.name}
        for learner, incarnation in self._met.items():
            now = alive.get(learner, -1)
            if now == incarnation:
                self._heard.add(learner)
            elif now > incarnation or (now < 0 and learner in self._heard):
                self.save()
                raise RankLost("rank_left", peer=learner, policy=self.name)

    def close(self) -> None:
        """Leaves the others."""
        super().close()
        self._group.close()

    def _or_saved(self, work: Callable[[], bool]) -> bool:
        """What `work` says. If others are lost in it, the first rank keeps what it has: nothing is lost with them."""
        try:
            return work()
        except RankLost:
            self.save()
            raise

    def _fill(self) -> None:
        """A batch of what has arrived, if there is enough, in hand."""
        if self._given is None and self.take():
            given = self.checked_batch()
            assert given is None or isinstance(given, SegmentBatch)
            self._given = given
        self.waits_for = "data" if self._given is None else "ranks"

    def _ask(self, ends: bool) -> None:
        self._asked_with = self._given
        weights = float(self.weights.parameters.sum(dtype=torch.float64))
        self._group.announce_ready([self._given is not None, self._own_rows, ends, weights])

    def _agree(self, seconds: float) -> bool:
        """If all ranks have told how they stand, within `seconds`: one update with what they have. Whether one was
        made."""
        told = self._group.answer(seconds)
        if told is None:
            return False
        self._check(told)
        self._all_end = bool(told[:, _ENDS].all())
        self._all_rows = max(self._all_rows, int(told[:, _ROWS].sum()))
        if not told[:, _HAS].any():
            self._ended = self._all_end
            return False
        started, given = time.monotonic(), self._asked_with
        if given is None:
            self._join_in()
        else:
            self._given = None
            self.finish_update(self._outcome(given))
        self._counters.add(f"busy.{self.name}", time.monotonic() - started)
        return True

    def _check(self, told: Tensor) -> None:
        sums = told[:, _SUM]
        if sums.isfinite().all() and not bool((sums == sums[0]).all()):
            raise RankLost("rank_weights_differ", policy=self.name)

    def _join_in(self) -> None:
        """The others' update, to which this rank has nothing to add."""
        assert isinstance(self._buffer, BatchAssembler)
        outcome = self._outcome(self._buffer.empty())
        self._count_steps()
        if isinstance(outcome, TrainingFault):
            self._failed(outcome)
        else:
            self._faults = 0

    def _outcome(self, given: SegmentBatch) -> Outcome:
        assert isinstance(self.update, PPOUpdate)
        self._held.hold(self._rows)
        (outcome,) = update_each([self.update], [given], [self.progress])
        return outcome

    def _count_steps(self) -> None:
        """All ranks make the same; the first one's are the policy's."""
        if self._group.rank:
            self._steps_counted = self.update.train_steps
        super()._count_steps()

    def _align(self) -> None:
        """The first rank's weights, statistics, moments and random state."""
        state = self.update.state()
        names = sorted(state)
        self._group.share([self.weights.parameters, *self.policy.buffers(), *(state[name] for name in names)])
        self.update.load_state(state)
