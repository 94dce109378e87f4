"""What a worker tells its coordinator of itself, and what it tells again because no answer came."""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import dataclass, field

from protocol import RELEASE
from protocol.control.process_token import PROCESS_TOKEN
from protocol.messages import versioning
from protocol.messages.core import Episodes, Join, Role, Route, State

MAX_REQUEST = 2**19
"""Bytes of the largest request. A learner of 100 policies tells 300 KiB; a traceback, 1000 entries about episodes with
names of 20 letters and the counters of an actor are 150 KiB."""
EPISODES = 1000
"""Entries about episodes in one heartbeat; the others wait for the next."""

_KEPT = 10_000
"""Entries about episodes that are kept while the coordinator is away; the oldest are forgotten."""


def introduction(role: Role, name: str, node: str) -> Join:
    """The request of this process to become a member, with a token by which it is known again."""
    return Join(
        role=role,
        name=name,
        token=os.environ.pop(PROCESS_TOKEN, "") or secrets.token_hex(8),
        release=RELEASE,
        host=platform.node() or "unknown",
        pid=os.getpid(),
        node=node,
        oldest_schema=versioning.SPOKEN.oldest,
        newest_schema=versioning.SPOKEN.newest,
    )


@dataclass(slots=True)
class Report:
    """What a worker tells with its next heartbeat."""

    state: State = "starting"
    routes: list[Route] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    episodes: list[Episodes] = field(default_factory=list)


class UnackedEpisodes:
    """Episodes of heartbeats that were not answered: the next one tells them again."""

    def __init__(self) -> None:
        self._entries: list[Episodes] = []
        self._told = 0
        """How many of these, the oldest, the last heartbeat told."""

    def with_new(self, episodes: list[Episodes]) -> list[Episodes]:
        """What is to be told now, the oldest first: as much as a heartbeat may hold."""
        self._entries = [*self._entries, *episodes][-_KEPT:]
        return self._entries[:EPISODES]

    @property
    def more(self) -> bool:
        """Whether there is more than a heartbeat may hold."""
        return len(self._entries) > EPISODES

    def told(self, sent: bool) -> None:
        """A heartbeat with them was sent, or not."""
        self._told = min(EPISODES, len(self._entries)) if sent else 0

    def answered(self, known: bool) -> None:
        """An answer came; `known`: the coordinator took in what it was told."""
        if known:
            self._entries = self._entries[self._told :]
        self._told = 0
