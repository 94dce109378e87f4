"""Who sits where: a seat for each agent of a policy in each group of copies, with streams numbered through.

In flow: a policy's plan. Out flow: its seats by (agent, group), and who looks over their shoulders.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from protocol.common import Common, CommonWriter
from protocol.spaces import World
from workers.acting.performer import Performer
from workers.acting.seat import Seat, Sender
from workers.acting.witness import Watched, Witness
from workers.auxiliary_plan import AuxiliaryPlan
from workers.plan import PolicyPlan, seed_of

__all__ = ["seat_agents", "watched"]


def seat_agents(
    plan: PolicyPlan,
    world: World,
    performer: Performer,
    sender: Sender,
    seed: int,
    actor: tuple[str, int],
    common: CommonWriter | None = None,
) -> dict[tuple[int, int], Seat]:
    """The seats of all agents of `plan`; the noise of their actions comes from the run's `seed`, the actor (name and
    incarnation), the agent and the group."""
    seats = {}
    for position, agent in enumerate(plan.agents):
        for group in range(plan.groups):
            source = seed_of(seed, "noise", *actor, agent, *([group] if group else []))
            generator = np.random.Generator(np.random.Philox(source))
            first = position * plan.copies * plan.many + group * plan.block
            name, after = world.agents[agent].name, plan.config.flush_after
            seat = Seat(name, performer, sender, plan.block, first, generator, after, common=common)
            seats[agent, group] = seat
    return seats


def watched(
    plan: PolicyPlan,
    policies: Mapping[str, PolicyPlan],
    auxiliaries: Mapping[str, AuxiliaryPlan],
    senders: Mapping[str, Sender],
    common: CommonWriter | None = None,
) -> Sender:
    """The sender of `plan`'s seats; what auxiliaries watch of them goes to `senders` of theirs as well."""
    reader = None if common is None else Common(common.ring)
    witnesses = [
        Witness(plan.interface, senders[name], one.first_stream(plan, policies), one.config.fraction, reader)
        for name, one in auxiliaries.items()
        if plan.name in one.watches
    ]
    return Watched(senders[plan.name], witnesses) if witnesses else senders[plan.name]
