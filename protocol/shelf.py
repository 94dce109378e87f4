"""Where a receiver finds what agents see in common: one ring of moments an actor, whatever the policies.

In flow: what a header says of the moments that its segments refer to. Out flow: a `Common` to look them up in, the same
one for all policies of an actor, or a RookeryError.
"""

from __future__ import annotations

from pathlib import Path

from protocol.acknowledgements import Key
from protocol.common import COMMON, Common
from protocol.errors import SharedMemoryError, WireError
from protocol.layout import Layout
from protocol.memory import PREFIX, memory_dir
from protocol.messages import CommonRows
from protocol.ring import Ring

__all__ = ["Shelf"]


class Shelf:
    """The moments of all actors of `run`."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._layout: Layout | None = None
        self._near: dict[Key, Common] = {}

    def expect(self, layout: Layout, blocks: int) -> None:
        """Segments refer to moments of `layout`."""
        self._layout = layout

    def near(self, key: Key, told: CommonRows | None) -> Common | None:
        """The moments of an actor that shares its memory; None where nothing is common."""
        if self._layout is None or told is None:
            self._agree(told)
            return None
        known, path = self._near.get(key), Path(told.ring)
        if known is None:
            if not path.name.startswith(PREFIX):
                raise SharedMemoryError(f"{told.ring!r} is no ring's name; use the same release")
            known = Common(Ring.attach(path, self._layout), told.writer)
        if known.ring.nonce != told.nonce:
            if key not in self._near:
                known.ring.close()
            raise SharedMemoryError(f"{told.ring} is not the memory that {key[0]} writes; set transport: tcp")
        self._near[key] = known
        return known

    def left(self, key: Key) -> Common | None:
        """The moments that a dead actor left behind in memory."""
        if self._layout is not None and key not in self._near:
            path = memory_dir() / f"{PREFIX}{self._run}-{key[0]}.{key[1]}-{COMMON}.ring"
            self._near[key] = Common(Ring.attach(path, self._layout))
        return self._near.get(key)

    def forget(self, key: Key) -> None:
        """Lets go of a dead actor's moments."""
        gone = self._near.pop(key, None)
        if gone is not None:
            gone.ring.remove()

    def close(self) -> None:
        """Lets go of all memory."""
        for key in list(self._near):
            self.forget(key)

    def _agree(self, told: CommonRows | None) -> None:
        if (self._layout is None) != (told is None):
            raise WireError("segments whose actor sees other common observations; use the same configuration")
