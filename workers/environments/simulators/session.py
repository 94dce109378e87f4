"""One simulator that an actor serves: its identity, its episode, and messages that wait; and which copy each identity
that was ever admitted had, and how often it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import RookeryError
from protocol.messages.fast_path import ObserveHeader
from protocol.messages.simulator import End, Hello, Observe

_MOST_NAMES = 10_000
"""Identities of which it is remembered how often they were let in."""


class IdentityTable:
    """Of a world in `copies` copies."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._incarnations: dict[str, int] = {}
        self._home: dict[str, int] = {}
        """The copy that an identity had last."""

    def incarnation_of(self, name: str) -> int:
        """How often it has been let in, this time included; the one that came longest ago is forgotten."""
        times = self._incarnations.pop(name, 0) + 1
        if len(self._incarnations) >= _MOST_NAMES:
            del self._incarnations[next(iter(self._incarnations))]
        self._incarnations[name] = times
        return times

    def copy_for(self, name: str, taken: AbstractSet[int]) -> int:
        """Where it was before, if nobody is there; else where nobody has been, or is. Not all are taken."""
        home = self._home.get(name)
        if home is None or home in taken:
            free = [copy for copy in range(self._copies) if copy not in taken]
            known = set(self._home.values())
            home = next((copy for copy in free if copy not in known), free[0])
            self._home = {other: copy for other, copy in self._home.items() if copy != home}
        self._home[name] = home
        return home


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

    message: ObserveHeader | Observe | End
    frames: Sequence[bytes]
    at: float


@dataclass(slots=True, eq=False)
class SimulatorSession:
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
    rival: tuple[str, float] = "", 0.0
    """The token of who claimed its name last, and when."""
    reported: float = 0.0
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
