"""The few bytes that an actor and a process that steps copies say to each other, over a pair of sockets.

`RESET` and `STEP` are answered by `TURN`, in order; `HEAR`, of a programme as JSON, is not; `WORLD` is said once,
first. What an error says is text.
"""

from __future__ import annotations

import struct
from enum import IntEnum

__all__ = ["ANSWER", "COMMAND", "Kind"]

COMMAND = struct.Struct("<BxHxxxxQ")
"""kind, group, seed (of HEAR: bytes of text that follow)"""
ANSWER = struct.Struct("<BxHI")
"""kind, group (of FAULT: the error's exit code), bytes of text that follow"""


class Kind(IntEnum):
    """What a command or an answer is."""

    RESET = 1
    STEP = 2
    WORLD = 3
    """The process is ready; the text is its world, and the descriptor of the memory is to come."""
    TURN = 4
    FAULT = 5
    """An error that was foreseen; the text is its sentence."""
    CRASH = 6
    """The last line of a traceback, before the process ends."""
    HEAR = 7
    """What is said of the members of a collection."""
