"""Stacks in memory that never moves, whose policies may differ in everything, as branches of one CUDA graph.

In flows: a batch for each policy. Out flow: what each policy's update does alone. One stack alone is one computation,
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from workers.algorithms.common.batches import Outcome, Update, update_each
from workers.policies.backends.cuda_graphs import GraphCache


class GraphableUpdate(Protocol):
    """A stack whose steps see no number of the host: `StackedPPO` and `StackedQLearning`."""

    @property
    def generation(self) -> int:
        """Grows whenever its memory becomes another: what was recorded before is of no use any more."""

    @property
    def updates(self) -> Sequence[Update[Any]]:
        """Those whose work it does."""

    def load(self, given: Sequence[Any], progress: Sequence[float]) -> int | None:
        """Takes a batch for each; the number of steps, or None: these batches are for each update alone."""

    def select_minibatch(self, turn: int) -> Hashable:
        """The next step is number `turn`; what tells its memory, and so its graph."""

    def step(self) -> None:
        """Makes the step, as often as it is asked."""

    def after_step(self, turn: int) -> None:
        """Step number `turn` has been asked of the device."""

    def collect(self) -> list[Outcome]:
        """What became of each."""


class Branches:
    """`stacks` make their steps side by side."""

    def __init__(self, stacks: Sequence[GraphableUpdate], recorder: GraphCache) -> None:
        self.stacks, self._recorder = [*stacks], recorder
        self._generations = [stack.generation for stack in self.stacks]

    def update(
        self, given: Sequence[Any], progress: Sequence[float], meanwhile: Callable[[], None] = lambda: None
    ) -> list[Outcome]:
        """What becomes of each policy of each stack, in their order. `meanwhile` is called when all is asked of the
        device and nothing is waited for yet."""
        found: dict[int, list[Outcome]] = {}
        steps: dict[int, int] = {}
        at = 0
        for number, stack in enumerate(self.stacks):
            mine = slice(at, at + len(stack.updates))
            at = mine.stop
            count = stack.load(given[mine], progress[mine])
            if count is None:
                found[number] = update_each(stack.updates, given[mine], progress[mine])
            else:
                steps[number] = count
        self._forget()
        for turn in range(max(steps.values(), default=0)):
            going = [number for number, count in steps.items() if turn < count]
            key = tuple((number, self.stacks[number].select_minibatch(turn)) for number in going)
            self._recorder.run(key, [self.stacks[number].step for number in going])
            for number in going:
                self.stacks[number].after_step(turn)
        meanwhile()
        for number in steps:
            found[number] = self.stacks[number].collect()
        return [outcome for number in range(len(self.stacks)) for outcome in found[number]]

    def _forget(self) -> None:
        """Graphs of stacks whose memory has become another."""
        now = [stack.generation for stack in self.stacks]
        other = {number for number, pair in enumerate(zip(now, self._generations, strict=True)) if pair[0] != pair[1]}
        self._generations = now
        if other:
            self._recorder.forget(lambda key: any(number in other for number, _ in key))
