"""The members of a team, as the policy that plays it knows them: whose numbers are whose in what it is shown.

In flow: both ends of a policy. Out flow: the members, in the order of its choices. A team is any agent whose
observation and action consist of parts of the same names: each part of the action is chosen on that part of the
observation. Without torch: runs are planned with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.spaces import Leaf
from workers.policies.interface import Interface


@dataclass(frozen=True, slots=True)
class TeamMember:
    """One of a team: the numbers `start`..`stop` of what the team is shown are its own; it has `choices`."""

    name: str
    start: int
    stop: int
    choices: int

    @property
    def width(self) -> int:
        """How many numbers are its own."""
        return self.stop - self.start


def members_of(interface: Interface) -> tuple[TeamMember, ...]:
    """The members of the team; none if it is none, or if one of them does more than choose one of its values."""
    place, actions = interface.place, interface.action_encoding
    leaves = [leaf for leaf in place.observed.leaves if not leaf.evaluation_only]
    names = [_part(leaf) for leaf in place.acted.leaves]
    single = len(set(names)) == len(names) == len(actions.head_sizes) > 1 and not actions.continuous
    if not single or {_part(leaf) for leaf in leaves} != set(names):
        return ()
    spans: dict[str | int, tuple[int, int]] = {}
    for leaf, part in zip(leaves, interface.observation_encoding.parts, strict=False):  # what is common comes behind
        start, _ = spans.get(_part(leaf), (part.at, 0))
        spans[_part(leaf)] = start, part.at + part.width
    return tuple(
        TeamMember(str(name), *spans[name], size) for name, size in zip(names, actions.head_sizes, strict=True)
    )


def common_of(interface: Interface) -> slice:
    """The numbers that each member is shown besides its own."""
    return slice(members_of(interface)[-1].stop, interface.observation_encoding.width)


def first_mismatch(members: tuple[TeamMember, ...]) -> tuple[TeamMember, TeamMember] | None:
    """Two members that one network cannot serve, as they see or do another number of things."""
    first = members[0]
    for member in members:
        if (member.width, member.choices) != (first.width, first.choices):
            return first, member
    return None


def _part(leaf: Leaf) -> str | int:
    """The name of the part that the leaf is in, or is; "" where there are no parts."""
    return leaf.path[0] if leaf.path else ""
