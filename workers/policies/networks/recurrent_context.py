"""How the rows of segments hang together, for who remembers.

In flow: none. Out flow: from which states on, and until which ends.

Legend: `T` segment length, `b` segments, `k` true last observations, `S` numbers of a state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RecurrentContext(NamedTuple):
    """From which states on, and until which ends, rows of segments are remembered."""

    state: Tensor
    """[b, S]: before row 0"""
    ended: Tensor
    """[T, b] bool: an episode ended with this row, and nothing is remembered beyond it"""
    final_place: Tensor
    """[k] int64: place t * b + i of the row that each true last observation comes after"""
    runs: int = 0
    """That there are at most, where shapes must not change (cuda_recurrent.py); 0: nobody counted them"""

    def of_members(self, members: int) -> RecurrentContext:
        """The same where each row is one of each of so many, side by side, and a state is theirs one behind the other:
        as of so many times as many segments."""
        device = self.final_place.device
        place = self.final_place[:, None] * members + torch.arange(members, device=device)
        state = self.state.view(len(self.state) * members, -1)
        return RecurrentContext(state, self.ended.repeat_interleave(members, 1), place.flatten())

    def of_each(self, states: list[int]) -> list[RecurrentContext]:
        """What each of them remembers, whose states are so long."""
        return [self._replace(state=own) for own in self.state.split(states, 1)]
