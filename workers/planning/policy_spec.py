"""What an actor that does not read the configuration must know of a policy, as plain data. Pure.

In flow: the plan of a policy. Out flow: its `PolicySpec`, which the coordinator tells actors and relays at joining.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from protocol.messages.core import PolicySpec
from protocol.spaces import World
from workers.planning.policy_plan import LayoutFields, PolicyPlan
from workers.policies.network_spec import network_facts


def policy_spec(plan: PolicyPlan, world: World) -> PolicySpec:
    """The facts of `plan`'s policy in `world`."""
    return PolicySpec(
        policy=plan.name,
        agents=[world.agents[index].name for index in plan.agents],
        layout=_compact(plan.layout.describe()),
        network=_compact(network_facts(plan.interface, plan.config)),
        mode=plan.config.algorithm.mode,
        credits=plan.most_announced,
        max_inline=plan.pool_slots,
        sync_interval=plan.config.sync_interval,
        common="" if plan.common is None else _compact(plan.common.describe()),
    )


def fields_of(specs: Iterable[PolicySpec]) -> LayoutFields:
    """The fields of each policy's layout."""
    return {one.policy: json.loads(one.layout)["fields"] for one in specs}


def _compact(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))
