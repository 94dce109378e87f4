"""What an algorithm can learn, and what not. Pure.

In flows: an algorithm's section of the configuration, both ends of a policy. Out flow: nothing, or what to say of the
agent, with the remedy.
"""

from __future__ import annotations

from itertools import zip_longest

from protocol.config.run import C51, DQN, IQN, QMIX, SAC, VDN, Sampled, Streamed
from workers.policies.interface import Interface
from workers.policies.team_layout import first_mismatch, members_of


def incompatibility(algorithm: Streamed | Sampled, interface: Interface) -> str | None:
    """Why `algorithm` cannot learn what the agent does from what it observes, with the remedy; None if it can."""
    if isinstance(algorithm, Streamed):
        return _unseen(algorithm, interface)
    actions = interface.action_encoding
    if isinstance(algorithm, VDN | QMIX):
        return _undividable(algorithm, interface)
    if isinstance(algorithm, IQN | DQN | C51) and not actions.single:
        remedy = "use sac or ppo" if actions.bounded and not actions.head_sizes else "use ppo"
        if members_of(interface):
            remedy = "use vdn, qmix or ppo"
        return f"does more than choose one of a number of values, which {algorithm.name} cannot learn; {remedy} for it"
    if isinstance(algorithm, SAC) and actions.head_sizes and not actions.single:
        return "makes several choices, or one beside numbers, and sac learns one, or numbers; use ppo for it"
    if isinstance(algorithm, SAC) and actions.single and not 0 <= (algorithm.target_entropy or 0) <= 1:
        told = f"is a part of what drawing evenly has, and cannot be {algorithm.target_entropy:g}"
        return f"makes one choice, whose target_entropy {told}; set it between 0 and 1"
    if isinstance(algorithm, SAC) and not actions.bounded:
        return "acts in a box without bounds, to which sac cannot scale; give its space bounds, or use ppo for it"
    return None


def _unseen(algorithm: Streamed, interface: Interface) -> str | None:
    """Why a central critic would see no more than the actor, with the remedy; None if it does, or there is none."""
    if not algorithm.central_critic or interface.privileged is not None:
        return None
    return (
        "observes nothing that only learners see, so that its central_critic would see no more than the actor; set "
        "environment.central_state to joint (or state), mark a part of its observation as evaluation-only, or leave "
        "central_critic out"
    )


def _undividable(algorithm: VDN | QMIX, interface: Interface) -> str | None:
    """Why the values of these actions are not made of those of members, with the remedy; None if they are."""
    members, name = members_of(interface), algorithm.name
    if not members:
        remedy = "use dqn, iqn or ppo for it" if interface.action_encoding.single else "use ppo for it"
        return (
            f"is no team of agents that choose one of a number of values each, and {name} learns for such teams only; "
            f"make one of the world's agents with environment.teams, or {remedy}"
        )
    differ = first_mismatch(members) if algorithm.shared else None
    if differ is not None:
        told = " and ".join(f"{one.name!r} sees {one.width} numbers and has {one.choices} choices" for one in differ)
        return f"has members that no one network can serve, as {told}; set algorithm.shared to false"
    if algorithm.shared and interface.encoder is not None:
        first, seen = members[0].name, interface.observation_encoding.of_member
        for other in (member.name for member in members[1:]):
            pairs = zip_longest(seen(first).parts, seen(other).parts)
            for part in (a or b for a, b in pairs if a is None or b is None or (a.path, a.space) != (b.path, b.space)):
                what = f"{first!r} and {other!r} do not see the same, as {part.path}"
                return f"has members that no one encoder can serve: {what}; set algorithm.shared to false"
    return None
