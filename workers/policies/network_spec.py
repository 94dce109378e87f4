"""What must be known of a policy's network to compute actions from its weights, as plain data. Pure.

In flows: the interface of an agent, the policy's configuration. Out flow: the network's specification.
"""

from __future__ import annotations

from typing import Any

from protocol.config.network import CellCore
from protocol.config.off_policy import ValueBased
from protocol.config.run import C51, IQN, QMIX, SAC, VDN, PolicyConfig, Streamed
from workers.policies.interface import Interface
from workers.policies.team_layout import common_of, members_of


def network_facts(interface: Interface, config: PolicyConfig) -> dict[str, Any]:
    """What protocol/README.md, "Acting", needs to compute actions from the weights."""
    algorithm, network = config.algorithm, config.network
    common = {**_ends(interface), "hidden": list(network.hidden), "activation": network.activation}
    cell = network.core if isinstance(network.core, CellCore) else None
    special = interface.encoder is not None or network.autoregressive or any(one.dtype for one in config.declares)
    if special or network.core is not (cell if isinstance(algorithm, Streamed) else None):
        return {"kind": "module", "actions": common["actions"], "outputs": common["outputs"]}
    if isinstance(algorithm, SAC) and not interface.action_encoding.head_sizes:
        return {"kind": "squashed", **common, "frames": algorithm.frames}
    if isinstance(algorithm, ValueBased):
        facts = {**common, "frames": algorithm.frames, "dueling": algorithm.dueling, "noisy": algorithm.noisy}
        if isinstance(algorithm, IQN):
            return {"kind": "quantile", **facts, "cosines": algorithm.cosines}
        if isinstance(algorithm, C51):
            return {"kind": "categorical", **facts}
        if isinstance(algorithm, VDN | QMIX):
            return {"kind": "members", **facts, "shared": algorithm.shared, **_members(interface)}
        return {"kind": "value", **facts}
    alone = isinstance(algorithm, SAC) or (isinstance(algorithm, Streamed) and algorithm.central_critic)
    return {
        "kind": "actor" if alone else "actor_critic",
        **common,
        "normalize_observation": not isinstance(algorithm, SAC) and bool(algorithm.normalize_observation),
        "share_layers": network.share_layers,
        "recurrent": None if cell is None else cell.name,
        "recurrent_size": CellCore().size if cell is None else cell.size,
        **({"frames": algorithm.frames} if algorithm.frames > 1 else {}),
    }


def _members(interface: Interface) -> dict[str, Any]:
    """Whose numbers are whose in the vector of a team, and how many values each member chooses among."""
    common = common_of(interface)
    return {
        "members": [
            {"at": member.start, "width": member.width, "choices": member.choices} for member in members_of(interface)
        ],
        "common": {"at": common.start, "width": common.stop - common.start},
    }


def _ends(interface: Interface) -> dict[str, Any]:
    """The vector that the network takes and what its outputs mean, column by column."""
    shown, actions = interface.observation_encoding, interface.action_encoding
    return {
        "observation": list(shown.shape),
        "inputs": [
            {"column": part.column, "at": part.at, "width": part.width, "choices": [list(one) for one in part.choices]}
            for part in shown.parts
        ],
        "actions": sum(actions.head_sizes) + actions.continuous,
        "outputs": actions.describe(),
    }
