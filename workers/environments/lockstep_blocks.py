"""The blocks of copies that one actor was dealt in lock-step: worlds by themselves, whose turns alternate as groups.

In flows: actions of the block whose turn was returned last. Out flow: the next block's turn. What happens in a block
depends on the run's seed and its number in the run alone, never on who plays it or what else he plays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from numpy.typing import NDArray

from protocol.config.checks import dealt
from protocol.config.run import Run
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Episodes, Player, Turn, add_episodes
from workers.environments.checks.closing import close_all
from workers.environments.registry import make
from workers.runtime.seeds import seed_of
from workers.runtime.state_capture import State, capture, restore, strip_prefix


def build_lockstep_blocks(run: Run, actor: int) -> LockstepBlocks:
    """The blocks of actor number `actor`."""
    alone, numbers = run.environment.model_copy(update={"copies": run.act_block}), dealt(run, actor)
    return LockstepBlocks([make(alone) for _ in numbers], numbers)


@dataclass(slots=True)
class _Turns:
    """Whose turn was told last, and that of each block."""

    now: int = 0
    turns: list[Turn] = field(default_factory=list)


class LockstepBlocks(Environment):
    """The environments `blocks`, which have these `numbers` in the run."""

    def __init__(self, blocks: Sequence[Environment], numbers: range) -> None:
        self._blocks, self._numbers = blocks, numbers
        self.world, self.groups = blocks[0].world, len(blocks)
        self.copies = sum(block.copies for block in blocks)
        self.has_state = all(block.has_state for block in blocks)
        self._now = 0
        self._turns: list[Turn] = []

    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all blocks, in each reproducibly from `seed` and its number; the first one's turn."""
        self._turns = [
            block.reset(seed_of(seed, "block", number))
            for number, block in zip(self._numbers, self._blocks, strict=True)
        ]
        for place, turn in enumerate(self._turns):
            turn.group = place
        self._now = 0
        return self._turns[0]

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """Steps the block whose turn it was; the turn is the next one's, which has waited since it was stepped."""
        now = self._now
        turn = self._turns[now] = self._blocks[now].step(actions)
        turn.group = now
        self._now = (now + 1) % self.groups
        return self._turns[self._now]

    def get_state(self) -> State:
        """Of each block by its place, and the turns that were told or wait to be."""
        state = {
            f"{place}.{name}": array for place, b in enumerate(self._blocks) for name, array in b.get_state().items()
        }
        return state | {f"turns.{name}": array for name, array in capture(_Turns(self._now, self._turns)).items()}

    def set_state(self, state: State) -> None:
        """The inverse; `turn` is the one that was told last."""
        for place, block in enumerate(self._blocks):
            block.set_state(strip_prefix(f"{place}.", state))
        there = _Turns()
        restore(there, strip_prefix("turns.", state), (Turn, AgentTimeStep, AgentOutcome))
        self._now, self._turns = there.now, there.turns

    @property
    def turn(self) -> Turn:
        """The one that was told last."""
        return self._turns[self._now]

    def take_episodes(self) -> Episodes:
        """What ended since the last call in all blocks."""
        taken: Episodes = {}
        for block in self._blocks:
            add_episodes(taken, block.take_episodes())
        return taken

    def scripted(self) -> Player | None:
        """As the first block's."""
        return self._blocks[0].scripted()

    def close(self) -> None:
        """Closes all blocks."""
        close_all(list(self._blocks))
