"""One simulator that an actor serves: who it is, where its episode stands, what it said and nobody looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import RookeryError
from protocol.frequent import Asked
from protocol.simulator_messages import End, Hello, Observe

__all__ = ["Guest", "GuestFault", "Heard"]


class GuestFault(RookeryError):
    """What a simulator said cannot be taken in; `code` is what it is told, for programs."""

    def __init__(self, kind: str, code: str, fatal: bool = False, /, **facts: Any) -> None:
        super().__init__(kind, **facts)
        self.code, self.fatal = code, fatal
        self.answers = 0
        """Number of the `observe` that is refused."""


@dataclass(slots=True, eq=False)
class Heard:
    """A message that waits to be looked at. `at`: when it arrived."""

    message: Asked | Observe | End
    frames: Sequence[bytes]
    at: float


@dataclass(slots=True, eq=False)
class Guest:
    """A simulator in copy `copy` of the world. `episode` is the number of its present episode while `playing`, else of
    the last one."""

    route: bytes
    hello: Hello
    incarnation: int
    copy: int
    lease: float
    heard_at: float
    schema_number: int
    episode: int = 0
    playing: bool = False
    number: int = 0
    """Of its last `observe`."""
    strikes: int = 0
    inbox: deque[Heard] = field(default_factory=deque)
    agents: Sequence[str] = ()
    """Of whom it spoke last, and their rows: (number of the place, row)."""
    rows: list[tuple[int, int]] = field(default_factory=list)
    gone: bool = False
    """Whether nothing more is taken in of what it said."""
    told: float = 0.0
    """Messages of the present second, and when that began."""
    second: float = 0.0

    @property
    def name(self) -> str:
        """Its identity."""
        return self.hello.name

    @property
    def next_episode(self) -> int:
        """The number that the next `observe` must have."""
        return self.episode if self.playing else self.episode + 1
