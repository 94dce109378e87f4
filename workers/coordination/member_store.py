"""What a coordinator knows of the members of its run, and the file that keeps it for a coordinator that returns."""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from protocol import SCHEMA
from protocol.messages.core import Command, Role, Route
from workers.runtime.files import SafeWriter

_HERE = platform.node()


@dataclass(slots=True)
class _Kept:
    """What the file says of a member, beside its routes."""

    name: str
    role: Role
    token: str
    incarnation: int
    host: str
    pid: int
    node: str
    lease: float
    index: int = 0
    policies: list[str] = field(default_factory=list)
    quota: int = 0
    steps_before: int = 0
    """Agent steps of earlier incarnations of this actor."""
    counters: dict[str, float] = field(default_factory=dict)


_KEPT = [one.name for one in fields(_Kept)]


@dataclass(slots=True)
class WorkerRecord(_Kept):
    """A living worker."""

    fresh: bool = False
    """Whether its number was given to it just now, and to nobody before."""
    seen: float = 0.0
    believed_at: float = -math.inf
    """When its counters last were as they can be, or it began; not known of one of an earlier coordinator."""
    heard: bool = True
    """False: known from the file of an earlier coordinator, and silent so far."""
    state: str = "starting"
    routes: list[Route] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    peer: bytes = b""
    """Of the connection of its newest heartbeat, in schema `schema_number`."""
    schema_number: int = SCHEMA
    told: tuple[Command, int] | None = None
    """Command and `checkpoints` of the newest answer to it; None: it had none."""

    @property
    def overdue(self) -> bool:
        """Whether it missed a heartbeat, or a coordinator that came back has not heard of it: its place may get free
        when its lease ends."""
        return not self.heard or time.monotonic() - self.seen > self.lease / 2

    @property
    def dead(self) -> bool:
        """Whether the member's process on this machine has ended; False when it cannot be known."""
        if self.host != _HERE:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class MemberStore:
    """The members, by name, and what is known of those that ended; begins with what an earlier coordinator of this run
    left in `path`."""

    def __init__(self, path: Path, disk: SafeWriter | None = None) -> None:
        self._path, self._disk, self._due_at = path, disk or SafeWriter(), 0.0
        self.run_id = secrets.token_hex(4)
        self.secret = secrets.token_hex(16)
        """By which segments are known to come from actors that were let in."""
        self.members: dict[str, WorkerRecord] = {}
        self.incarnations: dict[str, int] = {}
        self.quotas: dict[tuple[str, int], int] = {}
        """(actor, incarnation) -> agent steps it was given."""
        self.dealt: dict[str, int] = {}
        """actor -> agent steps it had made when what was left of the run was dealt anew."""
        self.ended: dict[tuple[str, int], dict[str, float]] = {}
        """(name, incarnation) -> the last counters."""
        self.clean: set[tuple[str, int]] = set()
        """(name, incarnation) of those that said farewell without an error."""
        self.rested: set[tuple[str, int]] = set()
        """Those of them whom nobody replaces: a life of the run ended with them."""
        self.gave_up: set[tuple[str, int]] = set()
        """(name, incarnation) of those that said farewell with one."""
        self.refused = {"requests": 0, "quarantined_peers": 0, "quarantined_requests": 0}
        """Messages to all coordinators of the run that were refused, and peers."""
        self.restarts: dict[str, int] = {}
        self.over = False
        """Whether this life of the run has ended in order: the next coordinator goes on with it, and replaces none."""
        self.tokens: dict[str, str] = {}
        """name -> token of the process that had its newest incarnation."""
        self.changed = False
        """Whether there is what nobody may be told of before it is kept."""
        self._kept = b""
        marker = path.parent / "run_id"
        self._inode = marker.stat().st_ino if marker.exists() else 0
        if path.exists():
            self._load()
        if not marker.exists() or marker.read_text().strip() != self.run_id:
            marker.write_text(self.run_id + "\n")
            self._inode = marker.stat().st_ino

    def commit(self) -> None:
        """Keeps what changed: of all that came and went at once with one file."""
        if self.changed:
            self.save()

    def save_if_due(self) -> None:
        """Writes what members have told since, at most twice a second and for a two-hundredth of the time."""
        if time.monotonic() < self._due_at:
            return
        began = time.thread_time()
        self.save()
        self._due_at = time.monotonic() + max(0.5, 200 * (time.thread_time() - began))

    def save(self) -> None:
        """Writes what a returning coordinator must know."""
        state = {
            "run": self.run_id,
            "secret": self.secret,
            "incarnations": self.incarnations,
            "quotas": [[*key, quota] for key, quota in self.quotas.items()],
            "dealt": self.dealt,
            "ended": [[*key, counters] for key, counters in self.ended.items()],
            "clean": sorted(self.clean),
            "rested": sorted(self.rested),
            "gave_up": sorted(self.gave_up),
            "refused": self.refused,
            "restarts": self.restarts,
            "over": self.over,
            "inode": self._inode,
            "tokens": self.tokens,
            "members": [_to_plain(member) for member in self.members.values()],
        }
        self.changed = False
        text = msgspec.json.encode(state)  # json takes six times as long
        if text != self._kept and self._disk.replace(self._path, text.decode(), 0o600):
            self._kept = text

    def _load(self) -> None:
        state = json.loads(self._path.read_text())
        self.run_id, self.secret = state["run"], state["secret"]
        if state.get("over") and state.get("inode", self._inode) != self._inode:
            self.run_id = secrets.token_hex(4)  # the folder is a copy: both runs may go on at once
        self.incarnations = dict(state["incarnations"])
        self.quotas = {(name, inc): quota for name, inc, quota in state["quotas"]}
        self.dealt = dict(state["dealt"])
        self.ended = {(name, inc): counters for name, inc, counters in state["ended"]}
        self.clean = {(name, inc) for name, inc in state["clean"]}
        self.rested = {(name, inc) for name, inc in state["rested"]}
        self.gave_up = {(name, inc) for name, inc in state["gave_up"]}
        self.refused = dict(state["refused"])
        self.restarts = dict(state["restarts"])
        if not state.get("over"):
            self.restarts["coordinator"] = self.restarts.get("coordinator", 0) + 1
        self.members = {plain["name"]: _from_plain(plain) for plain in state["members"]}
        self.tokens = dict(state["tokens"])


def _to_plain(member: WorkerRecord) -> dict[str, Any]:
    return {name: getattr(member, name) for name in _KEPT} | {"routes": [route.model_dump() for route in member.routes]}


def _from_plain(plain: dict[str, Any]) -> WorkerRecord:
    """A member of an earlier coordinator: it has a lease to be heard of."""
    routes = [Route.model_validate(route) for route in plain["routes"]]
    return WorkerRecord(**{name: plain[name] for name in _KEPT}, seen=time.monotonic(), heard=False, routes=routes)
