"""One policy in a learner in lock-step: it learns round by round, publishes when a round is used, and goes back to the
last cut, which has all that it remembers between two rounds, when all workers of the run begin anew.

round -> updates -> publish -> log -> cut (every so many rounds)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.weights.manifest import Version
from workers.learning.buffers.lockstep_rounds import LockstepRounds, RoundCommands, commands_of, in_rounds
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.source import SegmentSource
from workers.policies.checkpoint import to_cpu
from workers.runtime.lockstep_checkpoints import LockstepCheckpoints
from workers.runtime.state_capture import State, strip_prefix

log = logging.getLogger(__name__)


class LockstepLearner(PolicyLearner):
    """All that it learns from comes in rounds, so that another process makes the same updates, to the bit."""

    repeated, second_try = True, False
    _rounds: LockstepRounds
    _cuts: LockstepCheckpoints | None
    _commands: RoundCommands
    _wanted: tuple[float | None, bool] | None = None
    """What people want by now: its learning rate, None as configured, and whether it is frozen. None: not known yet."""

    @property
    def publication_due(self) -> bool:
        """Never: the end of a round is what actors wait for."""
        return False

    def resume(self, found: NDArray[np.uint8] | None, last: Version) -> None:
        """To the last cut, whose publication is made again; or to the beginning."""
        self.frozen = False  # until the round in which it was told to be
        self._commands.made = self._rounds.log.rounds if self._rounds.log is not None else 0
        cut = self._cuts is not None and self._cuts.newest is not None
        self._begins(new=not cut)
        if self._cuts is not None and cut:
            self._restore(self._cuts.read(self._part))
        elif self._rounds.log is not None:
            self._rounds.log.begin()
        self._begin_here()
        self._tell("policy_start")

    def obey(self, roster: Mapping[str, Any]) -> None:
        """What the run's roster says is followed between two rounds."""
        self._wanted = roster.get("rates", {}).get(self.name), self.name in roster.get("frozen", ())

    def take(self) -> bool:
        """As of any other; between two rounds it follows commands first."""
        if not self._rounds.open:
            number = self._rounds.number
            rate, frozen = self._commands.before(number, self._wanted)
            if frozen and not self.frozen and self._replay is not None:
                self._replay.move_out()  # actors write over their rings meanwhile, but not over a cut
            if self._commands.keep(number, (rate, frozen)):
                super().obey({"rates": {} if rate is None else {self.name: rate}, "frozen": [self.name] * frozen})
        return super().take()

    def close(self) -> None:
        """With the log of its rounds."""
        super().close()
        if self._rounds.log is not None:
            self._rounds.log.close()

    def _ordered(self, source: SegmentSource, context: LearnerContext) -> SegmentSource:
        self._rounds, self._cuts = in_rounds(source, self._plan, context.folder), context.cuts
        self._part = f"policy-{self.name}"
        self._commands = commands_of(self._run, self.name, context.folder)
        return self._rounds

    def _settle_unread(self) -> None:
        """A round of one that is frozen, after which the same weights are published."""
        super()._settle_unread()
        self._no_batch()

    def _told(self, metrics: dict[str, float]) -> None:
        super()._told(metrics)
        if self._rounds.log is not None:
            self._rounds.log.learned(metrics)

    def _no_batch(self) -> None:
        """Nothing more can be learned before the next round; actors wait for what is published now."""
        rounds, number = self._rounds, self._rounds.number
        if not rounds.used:
            return
        rounds.end()
        self.publish()
        if rounds.log is not None:
            weights = self.published.source()
            there = weights() if callable(weights) else weights
            rounds.log.end(number, self.version.version, self.update.train_steps, there)
        if self._cuts is not None and self._cuts.due(number):
            self._cuts.write(self._part, number, self._state())

    def _state(self) -> State:
        """All that is remembered between two rounds, as plain arrays, and the version and rows it stands at."""
        weights, update = to_cpu(self.policy.state_dict()), to_cpu(self.update.state())
        parts: dict[str, State] = {
            "weights": {name: tensor.numpy() for name, tensor in weights.items()},
            "update": {name: tensor.numpy() for name, tensor in update.items()},
            "fed": self._buffer.get_state(),
            "rounds": self._rounds.get_state(),
        }
        state = {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}
        return {**state, "standing": np.array([self.version.version, self._rows], np.int64)}

    def _restore(self, state: State) -> None:
        tensors = {
            name: torch.from_numpy(array) for name, array in state.items() if name.startswith(("weights.", "update."))
        }
        self.policy.load_state_dict(strip_prefix("weights.", tensors))
        self.update.load_state(strip_prefix("update.", tensors))
        self._buffer.set_state(strip_prefix("fed.", state))
        self._rounds.set_state(strip_prefix("rounds.", state))
        version, self._rows_before = state["standing"].tolist()
        self.version = Version(self.version.incarnation, version - 1)
        told = self.name, self._rounds.number - 1, version
        log.info("event=resumed policy=%s from=lockstep_checkpoint round=%d version=%d", *told)
