"""The members of one learner process: who makes an update now, together with whom, and what becomes of one that fails.

In flow: members with their data. Out flow: updates, each in turn, or those of one kind as one computation. A member
whose updates or weights are no numbers any more goes back to its newest checkpoint, or else to its last published
weights, and the others do not notice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from protocol.errors import TrainingFault
from protocol.memory.shared_file import Counters
from workers.algorithms.common.batches import ObservationBatch, Outcome
from workers.algorithms.cuda_graphs.step_compiler import EAGER, StepCompiler
from workers.algorithms.group_update import Given, GroupUpdate, graphable
from workers.learning.policy_learner import PolicyLearner
from workers.planning.cohorts import BRANCHES

log = logging.getLogger(__name__)

_CACHED_GROUPS = 4
"""Sets of members whose computation is kept: one that came and went must not be recorded anew each time."""


class Cohort:
    """Members share a process. Each may fail `restarts` times; `published` gives the last weights that it did publish.
    A member that is alone in its process ends with it, and is started again with it. `tick` is called before each
    update: that of all members may take long; `compiler` is for those that are to be compiled."""

    def __init__(
        self,
        restarts: int,
        published: Callable[[str], NDArray[np.uint8] | None],
        counters: Counters,
        tick: Callable[[], None] = lambda: None,
        compiler: StepCompiler = EAGER,
    ) -> None:
        self._restarts, self._published, self._counters, self._tick = restarts, published, counters, tick
        self._compiler = compiler
        self._members: list[PolicyLearner] = []
        self._groups: list[_Group] = []

    def add(self, member: PolicyLearner, stack: str = "") -> None:
        """One more; those of one `stack` are computed as one, those of BRANCHES side by side."""
        self._members.append(member)
        group = next((group for group in self._groups if stack and group.stack == stack), None)
        if group is None:
            group = _Group(stack, self._compiler)
            self._groups.append(group)
        group.members.append(member)

    @property
    def stacks(self) -> list[tuple[str, list[str]]]:
        """How those are computed that are not computed in turn, and their names."""
        several = [group for group in self._groups if len(group.members) > 1]
        ways = [BRANCHES if group.stack == BRANCHES else "stacked" for group in several]
        return [(way, [member.name for member in group.members]) for way, group in zip(ways, several, strict=True)]

    def turns(self) -> Iterator[tuple[PolicyLearner, Outcome | None]]:
        """Who is to `learn` now, each in a block of `restarting`: a member that is computed alone whether or not it has
        the data for it, others with what became of the update that was computed for them together."""
        for group in self._groups:
            self._tick()
            if group.is_single:
                yield group.members[0], None
            elif group.complete(self._ready(group)):
                yield from self._update_group(group)

    def finish(self) -> None:
        """The last publication and checkpoint of each, also of one that fails in this."""
        for group in self._groups:
            for member, outcome in self._update_group(group):
                with self.restarting(member):
                    member.learn(outcome)
        for member in self._members:
            finished = False
            while not finished:
                with self.restarting(member):
                    finished = member.finish()

    @contextmanager
    def restarting(self, member: PolicyLearner) -> Iterator[None]:
        """A fault of `member` in this block starts it again, unless it is alone or had been started too often."""
        try:
            yield
        except TrainingFault as fault:
            if len(self._members) == 1 or not member.second_try:
                raise
            self._start_again(member, fault)

    def _ready(self, group: _Group) -> list[PolicyLearner]:
        """Those of whom a batch was waited for, and is there now."""
        ready = []
        for member in group.waited_for:
            with self.restarting(member):
                if member.take():
                    ready.append(member)
        return ready

    def _update_group(self, group: _Group) -> list[tuple[PolicyLearner, Outcome]]:
        """One update of each of the group's members that have a batch, and what became of it: nothing where the batch
        was refused."""
        started, ready = time.monotonic(), group.take()
        given: list[tuple[PolicyLearner, Given]] = []
        for member in ready:
            with self.restarting(member):
                batch = member.checked_batch()
                if batch is not None and not isinstance(batch, ObservationBatch):  # auxiliaries are of no kind
                    given.append((member, batch))
        outcomes = dict(zip([member for member, _ in given], group.update(given), strict=True))
        for member in ready:
            self._counters.add(f"busy.{member.name}", (time.monotonic() - started) / len(ready))
        return [(member, outcomes.get(member, {})) for member in ready]

    def _start_again(self, member: PolicyLearner, fault: TrainingFault) -> None:
        """As if the member's process had been started again; raises `fault` when it was too often."""
        again = f"member_restarts.{member.name}"
        if self._counters[again] >= self._restarts:
            raise fault
        started = time.monotonic()
        self._counters.add(again)
        log.error("event=member_failed policy=%s reason=%s", member.name, fault.coded)
        member.restart(self._published(member.name))
        seconds = time.monotonic() - started
        restarts = int(self._counters[again])
        log.info("event=member_restarted policy=%s restarts=%d seconds=%.2f", member.name, restarts, seconds)


class _Group:
    """Members of one kind, which are computed as one when they have batches at the same time."""

    def __init__(self, stack: str, compiler: StepCompiler) -> None:
        self.stack, self._compiler = stack, compiler
        self.members: list[PolicyLearner] = []
        self._ready: list[PolicyLearner] = []
        self._last: list[PolicyLearner] = []
        """Who took part in the last update: the others of these are worth waiting for."""
        self._computed: dict[tuple[str, ...], GroupUpdate] = {}
        """By the members who take part, of the newest companies."""

    @property
    def is_single(self) -> bool:
        """Whether it is one member, whose update is made by itself."""
        first, *others = self.members
        return not others and (first.repeated or not graphable(first.update))

    @property
    def waited_for(self) -> list[PolicyLearner]:
        """Those without a batch."""
        return [member for member in self.members if member not in self._with_batch]

    def complete(self, more: Sequence[PolicyLearner]) -> bool:
        """With the batches of `more`: whether to go on now. Who has a batch waits for those that went along the last
        time, while every look brings more."""
        self._ready += more
        missing = any(member not in self._with_batch for member in self._last or self.members)
        return bool(self._with_batch) and not (more and missing)

    def take(self) -> list[PolicyLearner]:
        """Those who have a batch, in the order of members."""
        self._last, self._ready = self._with_batch, []
        return self._last

    @property
    def _with_batch(self) -> list[PolicyLearner]:
        """Who is frozen keeps its batch to itself until it is thawed."""
        return [member for member in self.members if member in self._ready and not member.frozen]

    def update(self, given: Sequence[tuple[PolicyLearner, Given]]) -> list[Outcome]:
        """What became of the update of each."""
        if not given:
            return []
        names = tuple(member.name for member, _ in given)
        stack = self._computed.pop(names, None)
        if stack is None:
            stack = GroupUpdate([member.update for member, _ in given], self.stack == BRANCHES, self._compiler)
            for oldest in [*self._computed][: 1 - _CACHED_GROUPS]:
                del self._computed[oldest]
        self._computed[names] = stack

        def meanwhile() -> None:
            for member, _ in given:
                member.prepare()

        return stack.update([batch for _, batch in given], [member.progress for member, _ in given], meanwhile)
