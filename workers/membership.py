"""Who takes part: names, incarnations, leases, quotas. A file keeps them for a coordinator that dies and returns."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.config import Run
from protocol.control_server import check_schemas
from protocol.messages import Beat, Join, Leave, Refusal, Role, Route
from workers.relaying.ways import ways

__all__ = ["Member", "Membership"]

Steps = dict[tuple[str, int], int]
"""(actor, incarnation) -> agent steps made."""


@dataclass(slots=True)
class Member:
    """A living worker."""

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
    seen: float = 0.0
    heard: bool = True
    """False: known from the file of an earlier coordinator, and silent so far."""
    state: str = "starting"
    routes: list[Route] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


class Membership:
    """The members of one run and what is known of those that ended."""

    def __init__(self, run: Run, policies: list[str], path: Path) -> None:
        self._run, self._policies, self._path = run, policies, path
        self._members: dict[str, Member] = {}
        self._incarnations: dict[str, int] = {}
        self._ended: dict[tuple[str, int], dict[str, float]] = {}
        self._quotas: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int, str], int] = {}
        """(actor, incarnation, policy) -> agent steps in the last of its `episodes` that were taken in."""
        self.clean: set[tuple[str, int]] = set()
        self.run_id = secrets.token_hex(4)
        self.complete = False
        self.restarts: dict[str, int] = {}
        self._load()
        (path.parent / "run_id").write_text(self.run_id + "\n")

    @property
    def learners_wanted(self) -> int:
        """Learner processes of this run."""
        return min(self._run.num_learner_processes or len(self._policies), len(self._policies))

    @property
    def watching(self) -> bool:
        """Whether a supervisor is there."""
        return bool(self.having("supervisor"))

    def join(self, join: Join, steps: Steps) -> Member | Refusal:
        """Lets a worker in, or says why not. `steps`: what every actor incarnation has made so far."""
        if reason := check_schemas(join):
            return Refusal(reason=reason)
        if (
            join.incarnation
            and self._incarnations.get(join.name) == join.incarnation
            and join.name not in self._members
            and self._suits(join)
        ):
            return self._admit(join, join.name, join.incarnation, steps)  # the coordinator was away, not the worker
        for member in self._members.values():
            if member.token == join.token:  # it asked twice before it heard the answer
                return member
        if reason := self._unfit(join):
            return Refusal(reason=reason)
        claimed = join.name if join.role in _KEY else ""
        name = claimed or self._vacant(join, steps)
        if name is None:
            return self._full(join.role)
        holder = self._members.get(name)
        if holder is not None:
            if not _is_dead(holder):
                if join.role == "relay":  # it takes over when that one has ended, or its lease has
                    return Refusal(reason=f"node {join.node} has a relay (pid {holder.pid}); stop one", retry=True)
                return Refusal(
                    reason=f"the identity {name!r} belongs to a living worker (host {holder.host}, pid {holder.pid}); "
                    "stop that one or leave out --name",
                    retry=not holder.heard,
                )
            self._end(holder)
        if join.role in ("actor", "learner") and self._index(join.role, name) is None:
            return Refusal(
                reason=f"this run has no {join.role} called {name!r}; its names are {', '.join(self._names(join.role))}"
            )
        if join.role == "actor" and self._quota(name, steps) <= 0:
            return Refusal(reason=_NOTHING_LEFT)
        return self._admit(join, name, self._incarnations.get(name, 0) + 1, steps)

    def beat(self, beat: Beat) -> Member | None:
        """Notes a heartbeat; None if its sender is no member."""
        member = self._of(beat)
        if member is not None:
            member.seen, member.heard = time.monotonic(), True
            member.state, member.routes = beat.state, list(beat.routes)
            member.counters, member.metrics = dict(beat.counters), dict(beat.metrics)
        return member

    def leave(self, leave: Leave) -> Member | None:
        """Notes a farewell; None if its sender is no member."""
        member = self._of(leave)
        if member is not None:
            member.counters, member.metrics = dict(leave.counters), dict(leave.metrics)
            if not leave.error:
                self.clean.add((member.name, member.incarnation))
            self._end(member)
        return member

    def untold(self, member: Member, episodes: list[tuple[str, int, int, float]]) -> list[tuple[str, int, int, float]]:
        """Those of `episodes` that the member did not tell before: it repeats what was not answered, and the steps of
        each policy's entries grow."""
        fresh = []
        for entry in episodes:
            key, steps = (member.name, member.incarnation, entry[0]), entry[1]
            if entry[0] in self._policies and steps > self._told.get(key, -1):
                self._told[key] = steps
                fresh.append(entry)
        return fresh

    def expire(self, now: float) -> list[Member]:
        """Ends memberships without heartbeats; those whose process is known to be dead do not wait for the lease."""
        lost = [m for m in self._members.values() if now - m.seen > m.lease or (now - m.seen > 1.0 and _is_dead(m))]
        for member in lost:
            self._end(member)
        return lost

    def having(self, role: Role) -> list[Member]:
        """The living members of a role."""
        return [member for member in self._members.values() if member.role == role]

    def routes(self, member: Member) -> list[Route]:
        """Where the living learners are, and for an actor by way of which relays."""
        routes = [
            route.model_copy(update={"node": learner.node})
            for learner in self.having("learner")
            for route in learner.routes
        ]
        if member.role != "actor":
            return routes
        return ways(routes, {relay.node: relay.routes for relay in self.having("relay")}, member.node)

    def living_actors(self) -> list[tuple[str, int]]:
        """(name, incarnation) of the living actors."""
        return [(member.name, member.incarnation) for member in self.having("actor")]

    def actors_done(self, steps: Steps) -> bool:
        """Whether every actor ended and all steps of the run are made."""
        if self.having("actor") or not self._quotas:
            return False
        return sum(steps.get(key, 0) for key in self._quotas) >= self._run.steps

    def counters(self, role: Role) -> dict[tuple[str, int], dict[str, float]]:
        """Last known counters by (name, incarnation), for workers whose pages cannot be seen from here."""
        found = {key: page for key, page in self._ended.items() if key[0].startswith(role)}
        found.update({(m.name, m.incarnation): m.counters for m in self.having(role)})
        return found

    def table(self) -> list[dict[str, Any]]:
        """The workers, for people."""
        now = time.monotonic()
        return [
            {
                "name": m.name,
                "role": m.role,
                "state": m.state,
                "incarnation": m.incarnation,
                "host": m.host,
                "pid": m.pid,
                "silent": round(now - m.seen, 1),
                **{key: value for key, value in m.metrics.items() if "." not in key or key.startswith("staleness")},
            }
            for m in sorted(self._members.values(), key=lambda m: (m.role, m.name))
            if m.role != "supervisor"
        ]

    def save(self) -> None:
        """Writes what a returning coordinator must know."""
        state = {
            "run": self.run_id,
            "incarnations": self._incarnations,
            "quotas": [[*key, quota] for key, quota in self._quotas.items()],
            "told": [[*key, steps] for key, steps in self._told.items()],
            "ended": [[*key, counters] for key, counters in self._ended.items()],
            "clean": sorted(self.clean),
            "restarts": self.restarts,
            "members": [_to_plain(member) for member in self._members.values()],
        }
        aside = self._path.with_name(f".{self._path.name}")
        aside.write_text(json.dumps(state))
        aside.rename(self._path)

    def _load(self) -> None:
        if not self._path.exists():
            return
        state = json.loads(self._path.read_text())
        self.run_id = state["run"]
        self._incarnations = dict(state["incarnations"])
        self._quotas = {(name, inc): quota for name, inc, quota in state["quotas"]}
        self._told = {(name, inc, policy): steps for name, inc, policy, steps in state["told"]}
        self._ended = {(name, inc): counters for name, inc, counters in state["ended"]}
        self.clean = {(name, inc) for name, inc in state["clean"]}
        self.restarts = dict(state["restarts"])
        self.restarts["coordinator"] = self.restarts.get("coordinator", 0) + 1
        self._members = {plain["name"]: _from_plain(plain) for plain in state["members"]}

    def _admit(self, join: Join, name: str, incarnation: int, steps: Steps) -> Member:
        run = self._run
        lease = run.learner_timeout if join.role == "learner" else run.actor_timeout
        index = self._index(join.role, name) or 0
        member = Member(
            name,
            join.role,
            join.token,
            incarnation,
            join.host,
            join.pid,
            join.node,
            lease,
            index,
            seen=time.monotonic(),
        )
        if join.role == "learner":
            member.policies = self._policies[index :: self.learners_wanted]
        else:
            member.policies = list(self._policies)
        if join.role == "actor":
            member.steps_before = sum(n for (actor, i), n in steps.items() if actor == name and i < incarnation)
            member.quota = self._quotas.get((name, incarnation)) or self._quota(name, steps)
            if member.quota > 0:
                self._quotas[name, incarnation] = member.quota
        if incarnation > 1 and self._incarnations.get(name) != incarnation and join.role != "supervisor":
            self.restarts[name] = self.restarts.get(name, 0) + 1
        self._incarnations[name] = incarnation
        self._members[name] = member
        self.save()
        return member

    def _quota(self, name: str, steps: Steps) -> int:
        """An equal share at first; afterwards what the dead incarnations left of theirs."""
        run = self._run
        position = self._index("actor", name) or 0
        share = run.steps // run.actors + (1 if position < run.steps % run.actors else 0)
        return share - sum(made for (actor, _), made in steps.items() if actor == name)

    def _names(self, role: Role) -> list[str]:
        if role == "learner":
            if self.learners_wanted == len(self._policies):
                return [f"learner-{policy}" for policy in self._policies]
            return [f"learner-{i}" for i in range(self.learners_wanted)]
        return [f"actor-{i}" for i in range(self._run.actors)]

    def _index(self, role: Role, name: str) -> int | None:
        names = self._names(role) if role in ("actor", "learner") else []
        return names.index(name) if name in names else None

    def _suits(self, join: Join) -> bool:
        """Whether the name is one of the role; watchers have those that were made up for them."""
        return (
            join.name.startswith(f"{join.role}-")
            if join.role not in _KEY
            else self._index(join.role, join.name) is not None
        )

    def _unfit(self, join: Join) -> str:
        """Empty, or why this run has no use for a relay there."""
        if join.role == "relay" and not join.node:
            return "a relay that does not say which node it serves; give it --node"
        if join.role == "relay" and self._run.transport != "auto":
            return f"transport {self._run.transport} leaves nothing to relay; set transport: auto, or start no relay"
        return ""

    def _vacant(self, join: Join, steps: Steps) -> str | None:
        """A name that nobody holds and that has something left to do. A node has one relay."""
        role = join.role
        if role == "relay":
            return f"{role}-{hashlib.sha256(join.node.encode()).hexdigest()[:8]}"
        if role == "supervisor":
            return f"{role}-{secrets.token_hex(3)}"
        for name in self._names(role):
            holder = self._members.get(name)
            if (holder is None or _is_dead(holder)) and (role == "learner" or self._quota(name, steps) > 0):
                return name
        return None

    def _full(self, role: Role) -> Refusal:
        holders = self.having(role)
        if role == "actor" and len(holders) < self._run.actors:
            return Refusal(reason=_NOTHING_LEFT)
        return Refusal(
            reason=f"all {role}s of this run are there; raise {_KEY[role]} or stop one of them",
            retry=not all(holder.heard for holder in holders),
        )

    def _of(self, message: Beat | Leave) -> Member | None:
        member = self._members.get(message.name)
        if member is None or member.token != message.token or member.incarnation != message.incarnation:
            return None
        return member

    def _end(self, member: Member) -> None:
        del self._members[member.name]
        if member.role in ("actor", "learner"):
            self._ended[member.name, member.incarnation] = member.counters
        self.save()


_KEY = {"actor": "actors", "learner": "num_learner_processes"}
"""The roles whose number is configured, and by which key."""
_NOTHING_LEFT = "all steps of this run are made or given to other actors; start another run"
_KEPT = (
    "name",
    "role",
    "token",
    "incarnation",
    "host",
    "pid",
    "node",
    "lease",
    "index",
    "policies",
    "quota",
    "steps_before",
    "counters",
)


def _to_plain(member: Member) -> dict[str, Any]:
    return {key: getattr(member, key) for key in _KEPT} | {"routes": [route.model_dump() for route in member.routes]}


def _from_plain(plain: dict[str, Any]) -> Member:
    """A member of an earlier coordinator: it has a lease to be heard of."""
    routes = [Route.model_validate(route) for route in plain["routes"]]
    return Member(**{key: plain[key] for key in _KEPT}, seen=time.monotonic(), heard=False, routes=routes)


def _is_dead(member: Member) -> bool:
    """Whether the member's process on this machine has ended; False when it cannot be known."""
    if member.host != platform.node():
        return False
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
