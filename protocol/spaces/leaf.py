"""The columns of an agent's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.spaces.composite import LeafSpace

Role = Literal["observation", "common", "action_mask", "action"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column of an agent's rows, [S, R, *space.shape]. `name` begins with `role`; dots divide its parts.

    `evaluation_only`: for learners, not for acting policies. `owner`: whose it is, once for each copy of the world: a
    population's (its path; "" is the outermost) if `role` is `common`, otherwise the agent's.
    """

    name: str
    role: Role
    path: tuple[str | int, ...]
    space: LeafSpace
    evaluation_only: bool
    owner: str

    @property
    def common(self) -> bool:
        """Is it the same for all agents of `owner`, and stored once?"""
        return self.role == "common"
