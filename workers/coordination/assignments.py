"""The places that a run has to give away: names of its actors and learners, the policies and steps that go with each.
How a worker reaches each learner: straight, or by way of the relays of its own node and of the learner's.

In flows: the configuration and the steps made so far; the learners' routes, and those of what relays can pass on now.
Out flow: who does what, by which routes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from protocol.config.run import Run
from protocol.messages.core import Role, Route
from workers.planning.cohorts import learners_of
from workers.planning.data_parallel import rank_names

_HEARTBEATS = 200
"""Heartbeats a second that the actors of a run send together: where there are more of them, each sends less often."""

EMPTY: Mapping[str, int] = MappingProxyType({})

Steps = dict[tuple[str, int], int]
"""(actor, incarnation) -> agent steps made."""

StepsOf = Callable[[str], Mapping[int, int]]
"""Name of an actor -> incarnation -> agent steps made."""


class Assignments:
    """The places of one run. `policies` in the order of the world's agents, with the `kinds` of those that may be
    computed as one; `dealt`: actor -> agent steps made when what was left of the run was dealt anew."""

    def __init__(
        self, run: Run, policies: list[str], kinds: Mapping[str, str] | None = None, dealt: Mapping[str, int] = EMPTY
    ) -> None:
        self._run, self._policies, self._dealt = run, policies, dealt
        self._learners = learners_of(run, policies, kinds or {})
        places = {"actor": [f"actor-{i}" for i in range(run.actors)], "learner": self._learners}
        self._places = {role: {name: i for i, name in enumerate(names)} for role, names in places.items()}
        self._closed = set[str]()
        """Learners of policies that are no more."""

    @property
    def learners(self) -> int:
        """Learner processes of this run."""
        return len(self.names("learner"))

    def add(self, policy: str) -> None:
        """A place for the learner of one policy more."""
        (name,) = rank_names(policy, 1)
        self._learners[name] = [policy]
        self._places["learner"][name] = len(self._places["learner"])

    def close(self, learner: str) -> None:
        """That place is given away no more."""
        self._closed.add(learner)

    def closed(self, name: str) -> bool:
        """Whether it had a place that is given away no more."""
        return name in self._closed

    @property
    def numbered(self) -> int:
        """Learners to begin by their numbers: all that there ever were, or where policies are numbers those that have
        a place, of which each takes one."""
        return self.learners if self._decimal else len(self._places["learner"])

    @property
    def _decimal(self) -> bool:
        return any(policy.isdecimal() for policy in self._policies)

    def names(self, role: Role) -> list[str]:
        """The names of all actors or learners; no others have a place."""
        return [name for name in self._places.get(role, ()) if name not in self._closed]

    def resolve_name(self, role: Role, claim: str) -> str:
        """The name that `claim` asks for. Where learners are called by their policies, `learner-N` means the N-th, as a
        scheduler that numbers its processes says; but for policies that are numbers themselves."""
        names = [*self._places.get(role, ())]  # also those that are closed: nobody's number becomes another's
        number = claim.removeprefix("learner-")
        if role != "learner" or not number.isdecimal() or self._decimal:
            return claim
        return names[int(number)] if int(number) < len(names) else claim

    def index(self, role: Role, name: str) -> int | None:
        """Which of the role's places `name` is; None if it is none."""
        return None if name in self._closed else self._places.get(role, {}).get(name)

    @property
    def ranked(self) -> dict[str, int]:
        """Policies that several learners train together, and how many."""
        trained = [policy for policies in self._learners.values() for policy in policies]
        return {policy: count for policy in self._policies if (count := trained.count(policy)) > 1}

    def policies(self, role: Role, index: int) -> list[str]:
        """What a learner trains; all policies for everybody else."""
        return list(self._learners.values())[index] if role == "learner" else list(self._policies)

    def lease(self, role: Role) -> float:
        """Seconds of silence after which a membership ends."""
        return self._run.learner_timeout if role == "learner" else self._run.actor_timeout

    def heartbeat(self, role: Role) -> float:
        """Seconds from one heartbeat to the next; a lease has time for three."""
        crowd = self._run.actors / _HEARTBEATS if role == "actor" else 0.0
        return min(max(self._run.monitor_period, crowd), self.lease(role) / 3)

    def quota(self, actor: str, steps: StepsOf) -> int:
        """Agent steps left to it: an equal share of what was dealt; afterwards what the dead incarnations left of
        theirs."""
        run = self._run
        position = self.index("actor", actor) or 0
        left = run.end - sum(self._dealt.values())
        share = left // run.actors + (1 if position < left % run.actors else 0)
        if run.lockstep:  # who comes back begins at the beginning, with all others
            return share
        return share - sum(steps(actor).values()) + self._dealt.get(actor, 0)

    def made_before(self, actor: str, own: int) -> int:
        """Agent steps that the run had made by about when `actor` had made its `own`."""
        return sum(self._dealt.values()) + (own - self._dealt.get(actor, 0)) * self._run.actors


def route_via_relays(routes: Iterable[Route], offers: Mapping[str, Sequence[Route]], node: str) -> list[Route]:
    """`routes` as a worker on `node` is told them; `offers` by node.

    On the learner's node, and where a node is not known, everything goes straight. From elsewhere experience goes by
    the relay of the learner's node, and weights come by that of the worker's own. Acknowledgements are always the
    learner's.
    """
    return [_way(route, offers, node) if node and route.node not in ("", node) else route for route in routes]


def _way(route: Route, offers: Mapping[str, Sequence[Route]], node: str) -> Route:
    update: dict[str, str | int] = {}
    for offer in offers.get(node, ()):
        if offer.policy == route.policy and offer.weights_relay:
            update |= {"weights": offer.weights, "weights_relay": offer.weights_relay}
    for offer in offers.get(route.node, ()):
        if offer.policy == route.policy and offer.experience_relay:
            update |= {"experience": offer.experience, "experience_relay": offer.experience_relay}
    return route.model_copy(update=update)
