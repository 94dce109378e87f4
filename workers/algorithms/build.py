"""From a policy and its configuration to the update that trains it."""

from __future__ import annotations

from protocol.config.run import BC, AuxiliaryConfig, PolicyConfig
from workers.algorithms.bc import BCUpdate
from workers.algorithms.c51 import C51Update
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.rnd import RNDUpdate
from workers.algorithms.sac import SACUpdate
from workers.algorithms.value_decomposition import DecompositionUpdate
from workers.policies.build import Policy
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.categorical_network import C51Policy
from workers.policies.networks.central_critic import CentralActorCritic
from workers.policies.networks.q_network import DQNPolicy
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.networks.rnd_networks import RNDNetworks
from workers.policies.networks.team_q_network import TeamQPolicy

__all__ = ["Update", "build_update"]

Update = PPOUpdate | IQNUpdate | DQNUpdate | C51Update | DecompositionUpdate | SACUpdate | BCUpdate | RNDUpdate


def build_update(policy: Policy | RNDNetworks, config: PolicyConfig | AuxiliaryConfig, seed: int = 0) -> Update:
    """The update of `config`'s algorithm for `policy`, which must be on its final device.

    `seed` decides the order of minibatches, quantile fractions and amounts drawn. Raises ValueError if policy and
    configuration are of different algorithms.
    """
    if isinstance(policy, RNDNetworks) or isinstance(config, AuxiliaryConfig):
        if isinstance(policy, RNDNetworks) and isinstance(config, AuxiliaryConfig):
            return RNDUpdate(policy, config, seed)
        raise ValueError("networks and configuration are of different kinds; build both of one plan")
    if isinstance(policy, ActorCritic) and isinstance(config.algorithm, BC):
        return BCUpdate(policy, config, seed)
    if isinstance(policy, ActorCritic | CentralActorCritic):
        return PPOUpdate(policy, config, seed)
    if isinstance(policy, IQNPolicy):
        return IQNUpdate(policy, config, seed)
    if isinstance(policy, C51Policy):
        return C51Update(policy, config, seed)
    if isinstance(policy, TeamQPolicy):
        return DecompositionUpdate(policy, config, seed)
    return DQNUpdate(policy, config, seed) if isinstance(policy, DQNPolicy) else SACUpdate(policy, config, seed)
