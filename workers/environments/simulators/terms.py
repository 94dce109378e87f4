"""On what terms an actor lets simulators in.

In flow: a world and its settings (opening.py). Out flow: what the door tells everybody, and holds them to.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.simulator_messages import Admit

__all__ = ["Terms"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all simulators of an actor: the answer to `hello`, but for who it is; the copies there
    are; messages a second that one may send."""

    admit: Admit
    copies: int
    rate: int
