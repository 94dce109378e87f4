"""Who takes part: names, incarnations, leases, quotas. Joins, heartbeats and farewells in; members and refusals out."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from protocol.config.run import Run
from protocol.control.process_token import mark_of
from protocol.control.server import check_schemas, refusal
from protocol.errors import ConfigurationError, Refused
from protocol.experience.proof import proof_of
from protocol.messages.core import Episodes, Heartbeat, Join, Leave, Refusal, Role, Route
from protocol.refusal_log import RefusalLog
from workers.coordination.assignments import Assignments, Steps, StepsOf, route_via_relays
from workers.coordination.claims import Claims
from workers.coordination.member_store import MemberStore, WorkerRecord
from workers.metrics.run_metrics import Told
from workers.metrics.segment_accounting import RELEASED
from workers.planning.data_parallel import rank_for_actor, rank_names, rank_of_learner
from workers.runtime.files import SafeWriter

_FREE = 100
"""Incarnations of a name that follow each other at once; from then on each waits a hundredth of a second longer: what
is known of all that were is looked through for each that comes."""
_WATCHERS = 10_000
"""Names that are remembered: of those of supervisors and relays, which are made up, the oldest go that have ended."""
_LAG, _MEASURES = "adoption_lag", 20
"""What a worker measures that is in the table of workers, besides names without dots, and how much of it."""


class Membership:
    """The members of one run and what is known of those that ended. `policies` learn, those in `fixed` do not; `kinds`
    of those that may be computed as one. `patient`: who finds no place now is told to ask again, as places get free
    when leases end."""

    def __init__(
        self,
        run: Run,
        policies: list[str],
        path: Path,
        fixed: Sequence[str] = (),
        patient: bool = False,
        disk: SafeWriter | None = None,
        kinds: Mapping[str, str] | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        self._run, self._patient = run, patient
        self.told: Told = {}
        self.claims = Claims({*policies, *fixed}, refusals)
        self._register = store = MemberStore(path, disk)
        self._places = Assignments(run, policies, kinds, store.dealt)
        self._ranked, self.made_before = self._places.ranked, self._places.made_before
        self._roles: dict[Role, dict[str, WorkerRecord]] = {role: {} for role in get_args(Role)}
        for member in self._register.members.values():
            self._roles[member.role][member.name] = member
        self._routes: dict[tuple[str, str, str], list[Route]] = {}
        """What members were told since a route changed, by role and, for actors, by what theirs depend on."""
        self._ended_at: dict[str, float] = {}
        """name -> when its newest incarnation ended."""
        self.run_id = self._register.run_id
        self.clean, self.gave_up = self._register.clean, self._register.gave_up
        self.refused = self._register.refused
        self.restarts = self._register.restarts
        self.complete = False
        self.interval = self._places.heartbeat
        self.save, self.save_if_due, self.commit = store.save, store.save_if_due, store.commit

    @property
    def learners_wanted(self) -> int:
        """Learner processes of this run, as it is now."""
        return self._places.learners

    @property
    def learners_begun(self) -> int:
        """Learner processes that a supervisor begins, by their numbers."""
        return self._places.numbered

    def add(self, policy: str) -> None:
        """One policy more that learns, in a process of its own."""
        self._places.add(policy)
        self.claims.played.add(policy)

    def released(self, policies: Collection[str]) -> list[str]:
        """Those of `policies`, which were retired, that no actor sends anything of any more, nor one that was lost and
        may come back. Learners of theirs that have left are not waited for."""
        store, acting = self._register, self._places.names("actor")
        lives = {
            (name, life) for name in acting if name not in store.members and (life := store.incarnations.get(name))
        }
        sends = bool(lives - self.clean)
        mine = [
            name
            for name in policies
            if not sends and all(f"{RELEASED}.{name}" in one.metrics for one in self.members("actor"))
        ]
        for learner in (name for policy in mine for name in rank_names(policy, 1)):
            life = self._register.incarnations.get(learner, 0)
            if learner not in self._register.members and (not life or (learner, life) in self._register.clean):
                self._places.close(learner)
        return mine

    def over(self, policy: str) -> bool:
        """Whether the learner of `policy`, which was retired, has nothing to learn any more, and has left."""
        return all(map(self._places.closed, rank_names(policy, 1)))

    def life_ended(self) -> None:
        """The run has ended in order, for now: whoever goes on with it replaces nobody."""
        self._register.over, self._register.rested = True, {*self._register.clean}
        self.save()

    def credentials(self, member: WorkerRecord) -> dict[str, Any]:
        """What `member` shows that its segments are its own by, or checks that of others by."""
        secret = self._register.secret
        if member.role == "actor":
            return {"proof": proof_of(secret, self.run_id, member.name, member.incarnation)}
        return {"secret": secret} if member.role in ("learner", "relay") else {}

    def join(self, join: Join, steps: StepsOf) -> WorkerRecord | Refusal:
        """Lets a worker in, or says why not. `steps`: what the incarnations of an actor have made so far."""
        if (differs := check_schemas(join)) is not None:
            return refusal(differs)
        if self._returning(join):
            return self._admit(join, join.name, join.incarnation, steps)
        if (member := self.welcomed(join)) is not None:
            return member
        if (name := self._token_owner(join)) is not None:
            return self._admit(join, name, self._register.incarnations[name], steps)
        if (unfit := self._unfit(join)) is not None:
            return refusal(unfit)
        claimed = self._places.resolve_name(join.role, join.name) if join.role in _KEY else ""
        if self._places.closed(claimed):
            return refusal(Refused("learner_of_retired_policy", peer=claimed), self._patient)
        name = claimed or self._vacant(join, steps)
        if name is None:
            return self._full(join.role)
        for holder in self._holders(join, name):
            if not holder.dead:
                return self._taken(join, holder)
            self._end(holder)
        if join.role in ("actor", "learner") and self._places.index(join.role, name) is None:
            choices = [*self._places.names(join.role)]
            return refusal(Refused("identity_unknown", role=join.role, peer=name, choices=choices))
        before = self._register.incarnations.get(name, 0)
        if time.monotonic() - self._ended_at.get(name, -math.inf) < before / _FREE - 1:
            return refusal(Refused("identity_comes_too_often", peer=name, count=before), True)
        if join.role == "actor" and self._places.quota(name, steps) <= 0:
            return refusal(Refused("nothing_left_to_do"), self._patient)
        return self._admit(join, name, before + 1, steps)

    def welcomed(self, join: Join) -> WorkerRecord | None:
        """Who was let in, and asks again before hearing the answer."""
        return next((member for member in self._register.members.values() if member.token == join.token), None)

    def withdraw(self, member: WorkerRecord) -> None:
        """Takes back that a `fresh` member was let in: it had gone before it was told, and has done nothing. Who asks
        next is given its place and its number, so that what dead processes had asked for in time costs nobody else."""
        name, number = member.name, member.incarnation
        self._forget(member)
        del self._register.tokens[name]
        self._register.quotas.pop((name, number), None)
        self._register.incarnations[name] = number - 1
        if self._replaces(name, number) and (left := self.restarts.pop(name, 1) - 1):
            self.restarts[name] = left
        self._register.changed = True

    def heartbeat(self, heartbeat: Heartbeat) -> WorkerRecord | None:
        """Notes a heartbeat; None if its sender is no member."""
        member = self._of(heartbeat)
        if member is not None:
            member.seen, member.heard = time.monotonic(), True
            member.state, member.metrics = heartbeat.state, self.claims.metrics(member, heartbeat.metrics)
            member.counters = self.claims.counters(member, heartbeat.counters)
            if member.routes != heartbeat.routes:
                member.routes = heartbeat.routes
                self._routes.clear()
        return member

    def leave(self, leave: Leave) -> WorkerRecord | None:
        """Notes a farewell; None if its sender is no member."""
        member = self._of(leave)
        if member is not None:
            member.counters = self.claims.counters(member, leave.counters)
            member.metrics = self.claims.metrics(member, leave.metrics)
            (self.gave_up if leave.error else self.clean).add((member.name, member.incarnation))
            self._end(member)
            del self._register.tokens[member.name]
        return member

    def new_episodes(self, member: WorkerRecord, episodes: list[Episodes]) -> list[Episodes]:
        """Those of `episodes` that the member did not tell before: it repeats what was not answered, and the steps of
        each policy's entries grow."""
        fresh = []
        for entry in episodes:
            key, steps = (member.name, member.incarnation, entry[0]), entry[1]
            before = self.told.get(key, -1)
            if self.claims.episodes(member, entry, max(0, before), steps <= before):
                self.told[key] = steps
                fresh.append(entry)
        return fresh

    def expire(self, now: float) -> list[WorkerRecord]:
        """Ends memberships without heartbeats; those whose process is known to be dead do not wait for the lease."""
        lost = []
        for role, members in self._roles.items():
            heard = now - min(self._places.lease(role), max(1.0, self._places.heartbeat(role)))
            late = [m for m in members.values() if m.seen < heard]
            lost += [m for m in late if now - m.seen > m.lease or m.dead]
        for member in lost:
            self._end(member)
        return lost

    @property
    def absent(self) -> list[str]:
        """Names of the workers that this run wants and that are not there."""
        wanted = [*self._places.names("actor"), *self._places.names("learner")]
        return [name for name in wanted if name not in self._register.members]

    def members(self, role: Role) -> list[WorkerRecord]:
        """The living members of a role."""
        return list(self._roles[role].values())

    def everybody(self) -> list[WorkerRecord]:
        """The living members."""
        return list(self._register.members.values())

    def there(self, role: Role) -> bool:
        """Whether any member of a role lives."""
        return bool(self._roles[role])

    def left_cleanly(self, join: Join) -> bool:
        """Whether the last who had the name that `join` claims said farewell without an error."""
        name = self._places.resolve_name(join.role, join.name)
        return (name, self._register.incarnations.get(name, 0)) in self.clean

    def routes(self, member: WorkerRecord) -> list[Route]:
        """Where the living learners are, and for an actor by way of which relays. Of a policy with several ranks a
        learner is told all, an actor its own, everybody else the first."""
        acts = member.role == "actor"
        key = member.role, member.node if acts else "", member.name if acts and self._ranked else ""
        if key not in self._routes:
            self._routes[key] = self._find_routes(member)
        return self._routes[key]

    def _find_routes(self, member: WorkerRecord) -> list[Route]:
        routes = [
            route.model_copy(update={"node": learner.node})
            for learner in self.members("learner")
            for route in learner.routes
            if self._concerns(route, member)
        ]
        if member.role != "actor":
            return routes
        return route_via_relays(routes, {relay.node: relay.routes for relay in self.members("relay")}, member.node)

    def _concerns(self, route: Route, member: WorkerRecord) -> bool:
        ranks = self._ranked.get(route.policy, 1)
        if ranks == 1 or member.role == "learner":
            return True
        wanted = rank_for_actor(member.name, ranks) if member.role == "actor" else 0
        return rank_of_learner(route.learner, ranks) == wanted

    def living_actors(self) -> list[tuple[str, int]]:
        """(name, incarnation) of the living actors."""
        return [(member.name, member.incarnation) for member in self.members("actor")]

    def actors_done(self, steps: Callable[[], Steps]) -> bool:
        """Whether every actor ended and all steps of the run are made; `steps` is asked for only where that may be."""
        if self.there("actor") or not self._register.quotas:
            return False
        made, counted = steps(), self._register.quotas
        if self._run.lockstep:  # what was made before all began anew is made again
            counted = {
                (name, i): quota for (name, i), quota in counted.items() if self._register.incarnations[name] == i
            }
            return sum(made.get(key, 0) for key in counted) >= self._run.end
        return sum(min(made.get(key, 0), quota) for key, quota in counted.items()) >= self._run.end

    def made(self, steps: Steps) -> int:
        """Agent steps of the run, of those that each actor has made: in lock-step what was made before all began anew
        is made again."""
        newest = self._register.incarnations
        return sum(made for (name, i), made in steps.items() if not self._run.lockstep or newest.get(name) == i)

    def deal_anew(self, steps: Steps) -> None:
        """All that is left of a run of another length, or with other actors, is dealt equally; who comes new is none of
        its first. ConfigurationError while somebody works by what was dealt before."""
        for member in self.everybody():
            if member.role in _KEY and not member.dead:
                who = {"peer": member.name, "host": member.host, "pid": member.pid}
                raise ConfigurationError("run_still_worked_on", **who)
        if self._run.lockstep:
            return
        store = self._register
        store.quotas = {key: steps.get(key, 0) for key in store.quotas}
        store.dealt.clear()
        for (name, _), made in steps.items():
            store.dealt[name] = store.dealt.get(name, 0) + made
        for name in self._places.names("actor"):
            if name not in store.incarnations:
                store.incarnations[name] = 1
                store.clean.add((name, 1))
                store.rested.add((name, 1))
        store.save()

    def counters(self, role: Role) -> dict[tuple[str, int], dict[str, float]]:
        """Last known counters by (name, incarnation), for workers whose pages cannot be seen from here."""
        found = {key: page for key, page in self._register.ended.items() if key[0].startswith(role)}
        found.update({(m.name, m.incarnation): m.counters for m in self.members(role)})
        return found

    def quota(self, actor: str, incarnation: int) -> int | None:
        """Agent steps that it was given; None if that is not known."""
        return self._register.quotas.get((actor, incarnation))

    def counted_by(self, name: str) -> dict[int, dict[str, float]]:
        """incarnation -> last known counters, of one worker. The newest is there even where it has told none."""
        newest, living = self._register.incarnations.get(name, 0), self._register.members.get(name)
        found = {number: self._register.ended.get((name, number), {}) for number in range(1, newest + 1)}
        return found if living is None else {**found, living.incarnation: living.counters}

    def measured(self) -> dict[str, float]:
        """POLICY.NAME -> what living learners measured last, and `adoption_lag`: publications that the actor furthest
        behind has not adopted, at most all that its learner tells of."""
        found: dict[str, float] = {}
        learners = [learner.counters for learner in self.members("learner")]
        for member in (*self.members("learner"), *self.members("evaluator")):
            found |= member.metrics
        for member in self.members("actor"):
            for name, value in member.metrics.items():
                kind, _, policy = name.partition(".")
                if kind == "adoption_lag":
                    place = f"{policy}.adoption_lag"
                    newest = max((told.get(f"version.{policy}", 0.0) for told in learners), default=0.0)
                    found[place] = max(self.claims.lag(member, policy, value, newest), found.get(place, 0.0))
        return found

    @property
    def apart(self) -> bool:
        """Whether the segments of some actor cross a network."""
        if self._run.transport == "tcp":
            return True
        nodes = {learner.node for learner in self.members("learner")}
        return any(not actor.node or nodes - {actor.node} for actor in self.members("actor"))

    def table(self) -> list[dict[str, Any]]:
        """The workers, for people, with some of what each measures, whatever it calls that."""
        now = time.monotonic()
        return [
            {
                **dict(islice(((k, v) for k, v in m.metrics.items() if "." not in k or k.startswith(_LAG)), _MEASURES)),
                "name": m.name,
                "role": m.role,
                "state": m.state,
                "incarnation": m.incarnation,
                "host": m.host,
                "pid": m.pid,
                "process": mark_of(m.token),
                "silent": round(now - m.seen, 1),
            }
            for m in sorted(self._register.members.values(), key=lambda m: (m.role, m.name))
            if m.role != "supervisor"
        ]

    def _admit(self, join: Join, name: str, incarnation: int, steps: StepsOf) -> WorkerRecord:
        index = self._places.index(join.role, name) or 0
        member = WorkerRecord(
            name,
            join.role,
            join.token,
            incarnation,
            join.host,
            join.pid,
            join.node,
            self._places.lease(join.role),
            index,
            self._places.policies(join.role, index),
            fresh=self._register.incarnations.get(name, 0) < incarnation,
            seen=time.monotonic(),
        )
        if member.fresh:
            member.believed_at = member.seen
            if join.role in _KEY:
                self.claims.began[name, incarnation] = member.seen
        if join.role == "actor":
            member.steps_before = sum(made for i, made in steps(name).items() if i < incarnation)
            member.quota = self._register.quotas.get((name, incarnation)) or self._places.quota(name, steps)
            if member.quota > 0:
                self._register.quotas[name, incarnation] = member.quota
        again = self._register.incarnations.get(name) != incarnation and join.role != "supervisor"
        if again and self._replaces(name, incarnation):
            self.restarts[name] = self.restarts.get(name, 0) + 1
        if len(known := self._register.incarnations) > _WATCHERS:
            made_up = (one for one in known if one.startswith(("supervisor-", "relay-")))
            if (oldest := next((one for one in made_up if one not in self._register.members), None)) is not None:
                gone = oldest, known.pop(oldest)
                self._register.clean.discard(gone)
                self._register.gave_up.discard(gone)
                self._register.tokens.pop(oldest, None)
                self._ended_at.pop(oldest, None)
        self._register.incarnations[name] = incarnation
        self._register.tokens[name] = join.token
        self._register.members[name] = self._roles[join.role][name] = member
        self._routes.clear()
        self._register.changed = True
        return member

    def _replaces(self, name: str, incarnation: int) -> bool:
        """Whether it replaces one that was lost, or told to end by others, and does not begin another life of the run,
        or its part in it."""
        return incarnation > 1 and (name, incarnation - 1) not in self._register.rested

    def _returning(self, join: Join) -> bool:
        """Whether this is a member of old whose lease has ended while it, or the coordinator, was away."""
        return (
            join.incarnation > 0
            and self._register.incarnations.get(join.name) == join.incarnation
            and self._register.tokens.get(join.name) == join.token
            and join.name not in self._register.members
            and self._name_fits_role(join.role, join.name)
        )

    def _token_owner(self, join: Join) -> str | None:
        """The name whose newest incarnation this process was given, if its lease ended before it heard of that, or
        before the last of what it had asked until then was read: one process has one incarnation, however often and
        how late it asks."""
        had = (name for name, token in self._register.tokens.items() if token == join.token)
        return next(
            (name for name in had if name not in self._register.members and self._name_fits_role(join.role, name)), None
        )

    def _name_fits_role(self, role: Role, name: str) -> bool:
        """Whether the name is one of the role; watchers have those that were made up for them."""
        if role in _KEY:
            return self._places.index(role, name) is not None
        return name.startswith(f"{role}-")

    def _unfit(self, join: Join) -> Refused | None:
        """None, or why this run has no use for a learner, or for a relay there."""
        if join.role in ("learner", "relay") and not self.learners_wanted:
            return Refused("nobody_learns", role=join.role)
        if join.role == "evaluator" and self._run.evaluation is None:
            return Refused("no_evaluation_wanted", key="evaluation")
        if join.role == "relay" and self._ranked:
            return Refused("ranks_not_relayed", policy=min(self._ranked))
        if join.role == "relay" and not join.node:
            return Refused("relay_without_node")
        if join.role == "relay" and join.name and not self._name_fits_role("relay", join.name):
            return Refused("identity_unknown", role="relay", peer=join.name, choices=["relay-*"])
        if join.role == "relay" and self._run.transport != "auto":
            return Refused("nothing_to_relay", value=self._run.transport, key="transport")
        return None

    def _vacant(self, join: Join, steps: StepsOf) -> str | None:
        """A name that nobody holds and that has something left to do. A relay has the one that it asks for, or else is
        called after its node."""
        role = join.role
        if role == "evaluator":
            return f"{role}-0"
        if role == "relay":
            return join.name or f"{role}-{hashlib.sha256(join.node.encode()).hexdigest()[:8]}"
        if role == "supervisor":
            return f"{role}-{secrets.token_hex(3)}"
        for name in self._places.names(role):
            holder = self._register.members.get(name)
            if (holder is None or holder.dead) and (role == "learner" or self._places.quota(name, steps) > 0):
                return name
        return None

    def _holders(self, join: Join, name: str) -> list[WorkerRecord]:
        """Who has this name, and of relays who serves the same node: it has one."""
        relays = self.members("relay") if join.role == "relay" else []
        there = [relay for relay in relays if relay.node == join.node and relay.name != name]
        return [*([self._register.members[name]] if name in self._register.members else []), *there]

    def _taken(self, join: Join, holder: WorkerRecord) -> Refusal:
        if join.role == "relay" and join.node == holder.node:  # it takes over when that one has ended, or its lease has
            return refusal(Refused("relay_there_already", node=join.node, pid=holder.pid), True)
        taken = Refused("identity_in_use", peer=holder.name, host=holder.host, pid=holder.pid)
        return refusal(taken, self._patient or holder.overdue)

    def _full(self, role: Role) -> Refusal:
        holders = self.members(role)
        retry = self._patient or any(holder.overdue for holder in holders)
        if role == "actor" and len(holders) < self._run.actors:
            return refusal(Refused("nothing_left_to_do"), retry)
        return refusal(Refused("all_places_taken", role=role, key=_KEY[role]), retry)

    def knows(self, name: str, token: str, incarnation: int) -> bool:
        """Whether this is a member."""
        member = self._register.members.get(name)
        return member is not None and (member.token, member.incarnation) == (token, incarnation)

    def _of(self, message: Heartbeat | Leave) -> WorkerRecord | None:
        known = self.knows(message.name, message.token, message.incarnation)
        return self._register.members[message.name] if known else None

    def _end(self, member: WorkerRecord) -> None:
        self._forget(member)
        self._ended_at[member.name] = time.monotonic()
        if member.role in ("actor", "learner"):
            self._register.ended[member.name, member.incarnation] = member.counters
        self._register.changed = True

    def _forget(self, member: WorkerRecord) -> None:
        del self._register.members[member.name], self._roles[member.role][member.name]
        self._routes.clear()


_KEY = {"actor": "actors", "learner": "num_learner_processes"}
"""The roles whose number is configured, and by which key."""
