"""What peers are refused, as lines of a log and as counts: however much they send, both stay small.

In flow: refusals. Out flows: a line for each reason and peer at its first time, and for a reason now and then, with how
often it has been; counts.
"""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)

_REASONS = 200
_PEERS = 100
"""Of each reason, who is told of singly: names are chosen by those who are refused."""
_LONGEST = 1_000
_LONGEST_PEER = 300


class RefusalLog:
    """Of one socket or process; may be told from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, str], set[str]] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def tell(self, event: str, kind: str, reason: str, *, level: int = logging.WARNING, **who: object) -> bool:
        """Counts what happened to `who`, for a `reason` of this `kind`; whether it is the first time, as far as is
        remembered. Then lines are written only of a kind's 10th, 20th … 100th, 200th …"""
        peer = one_line(" ".join(f"{key}={value}" for key, value in who.items()))[:_LONGEST_PEER]
        with self._lock:
            key = (event, kind) if (event, kind) in self._counts or len(self._counts) < _REASONS else (event, "other")
            count = self._counts[key] = self._counts.get(key, 0) + 1
            peers = self._peers.setdefault(key, set())
            first = len(peers) < _PEERS and peer not in peers
            if first:
                peers.add(peer)
        if first:
            log.log(level, "event=%s %s reason=%s", event, peer, one_line(reason))
        elif count >= 10 and count % 10 ** (len(str(count)) - 1) == 0:
            log.log(level, "event=%s %s kind=%s count=%d reason=%s", event, peer, key[1], count, one_line(reason))
        return first

    def counters(self) -> dict[str, float]:
        """How often, as `refusals.EVENT.KIND`."""
        with self._lock:
            return {f"refusals.{event}.{kind}": count for (event, kind), count in self._counts.items()}

    @property
    def total(self) -> int:
        """How often at all."""
        with self._lock:
            return sum(self._counts.values())


def one_line(text: str) -> str:
    """What somebody else had a part in, as a line of a log: neither long nor more than one."""
    return "".join(one if one.isprintable() else " " for one in text[:_LONGEST])
