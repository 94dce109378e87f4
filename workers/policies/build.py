"""From what a policy sees and does and its configuration to the policy itself, flat and reproducible."""

from __future__ import annotations

import math

import torch

from protocol.config import PPO, Network, PolicyConfig
from workers.policies.actor_critic import ActorCritic
from workers.policies.core import Core
from workers.policies.distributions import Heads
from workers.policies.flat import flatten_
from workers.policies.interface import Interface
from workers.policies.quantile import QuantileNetwork

__all__ = ["Policy", "build"]

Policy = ActorCritic | QuantileNetwork


def build(interface: Interface, config: PolicyConfig, seed: int) -> Policy:
    """The policy for `interface`, in host memory, with initial weights that depend on `seed` alone.

    Its weights are flat already: `flatten_(policy)` gives their `FlatWeights`. torch's own random state is untouched.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = _network(interface, config)
    flatten_(policy)
    return policy


def _network(interface: Interface, config: PolicyConfig) -> Policy:
    algorithm, network, actions = config.algorithm, config.network, interface.actions
    if isinstance(algorithm, PPO):
        return ActorCritic(
            interface.shown.shape,
            Heads(actions.sizes, actions.amounts),
            network.hidden,
            network.activation,
            normalize_observation=algorithm.normalize_observation,
            core=_core(interface, network),
        )
    return QuantileNetwork(
        interface.shown.shape,
        actions.sizes[0],
        network.hidden,
        network.activation,
        frames=algorithm.frames,
        cosines=algorithm.cosines,
        acting_quantiles=algorithm.acting_quantiles,
        dueling=algorithm.dueling,
        epsilon=algorithm.epsilon,
    )


def _core(interface: Interface, network: Network) -> Core | None:
    if network.recurrent is None:
        return None
    return Core(math.prod(interface.shown.shape), network.recurrent_size, network.recurrent)
