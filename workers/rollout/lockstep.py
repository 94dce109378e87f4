"""An actor in lock-step: which weights it needs before it goes on, and its part of a checkpoint.

In flows: turns made, the agents' collectors, the environment. Out flows: the version that each policy must have before
the next turn; plain arrays of environment, open segments and progress, and, when all workers begin anew, the same as
it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from protocol.config.checks import round_before
from protocol.config.run import Run
from protocol.errors import EnvironmentFault
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.lockstep_blocks import LockstepBlocks
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.build import AnySeat
from workers.runtime.lockstep_checkpoints import LockstepCheckpoints
from workers.runtime.state_capture import State, capture, restore, strip_prefix


class AsynchronousSchedule:
    """Nobody waits for anybody: newer weights are looked for every so many turns."""

    begins_anew = False
    """Whether an actor that comes back makes again what was made before."""

    def required_version(self, turn: int) -> int:
        """The version without which `turn` may not begin; 0: any."""
        return 0

    def looks(self, turn: int, interval: int) -> bool:
        """Whether newer weights are looked for before `turn`, counted from 0, by who does so every `interval`."""
        return turn % interval == 0

    def mid_turn(self, turn: Turn) -> bool:
        """Whether some of the groups have still to act until all have acted equally often, as they must."""
        return False


class LockstepSchedule:
    """Of an actor with these `seats`, whose policies learn: weights are those of the round before."""

    begins_anew = True

    def __init__(self, run: Run, seats: Sequence[AgentCollector]) -> None:
        self._length, self._seats = run.policy.segment_length, seats

    def required_version(self, turn: int) -> int:
        """As in `AsynchronousSchedule`, where it is not that of the turn before (0 where it is); EnvironmentFault if an
        agent has not acted in every turn until then."""
        number = round_before(turn, self._length)
        if number is None:
            return 0
        for seat in self._seats:
            if (seat.segments != number + 1).any():
                raise EnvironmentFault("lockstep_agent_pauses", agent=seat.name, key="schedule")
        return number + 2  # the first version is published before anybody acts

    def looks(self, turn: int, interval: int) -> bool:
        """Never: a version is waited for, or none is newer."""
        return False

    def mid_turn(self, turn: Turn) -> bool:
        """As in `AsynchronousSchedule`."""
        return turn.group != 0 or not turn.env_steps


def schedule_of(run: Run, seats: Sequence[AgentCollector]) -> AsynchronousSchedule | LockstepSchedule:
    """That of `run`, for an actor with these `seats`."""
    return LockstepSchedule(run, seats) if run.lockstep else AsynchronousSchedule()


log = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """How much an actor has done since the beginning."""

    turns: int = 0
    """Of the first group of copies."""
    env_steps: int = 0
    agent_steps: int = 0


class ActorCheckpoint:
    """Of actor number `index`, whose `environment` guards what it was dealt."""

    def __init__(
        self,
        cuts: LockstepCheckpoints,
        index: int,
        environment: CheckedEnvironment,
        seats: Mapping[tuple[int, int], AnySeat],
    ) -> None:
        self._cuts, self._part = cuts, f"actor-{index}"
        self._environment, self._seats = environment, seats

    def write_if_due(self, number: int, progress: Progress) -> None:
        """Once the weights that were published after round `number` are adopted, and before the next turn."""
        if not self._cuts.due(number):
            return
        state = {f"world.{name}": array for name, array in self._environment.get_state().items()}
        for (agent, group), seat in self._seats.items():
            state |= {f"{agent}.{group}.{name}": array for name, array in _state(seat).items()}
        self._cuts.write(self._part, number, {**state, "progress": np.array(astuple(progress), np.int64)})

    def load(self, on_wait: Callable[[], None]) -> tuple[Turn, Progress] | None:
        """Goes back to the newest cut, after the environment's `reset`: the turn that was told last there and how far
        it was; None where there is none, and everybody begins at the beginning."""
        if self._cuts.newest is None:
            return None
        state = self._cuts.read(self._part)
        self._environment.set_state(strip_prefix("world.", state))
        for (agent, group), seat in self._seats.items():
            mine = strip_prefix(f"{agent}.{group}.", state)
            if isinstance(seat, AgentCollector):
                seat.set_state(mine, on_wait)
            else:
                restore(seat, mine)
        progress = Progress(*state["progress"].tolist())
        log.info(
            "event=resumed from=lockstep_checkpoint round=%d agent_steps=%d", self._cuts.newest, progress.agent_steps
        )
        return self._dealt.turn, progress

    @property
    def _dealt(self) -> LockstepBlocks:
        dealt = self._environment.inner
        assert isinstance(dealt, LockstepBlocks)
        return dealt


def _state(seat: AnySeat) -> State:
    return seat.get_state() if isinstance(seat, AgentCollector) else capture(seat)
