"""From an agent's spaces and a policy's configuration to the policy itself, flat and reproducible."""

from __future__ import annotations

import torch

from protocol.config import PPO, PolicyConfig
from protocol.spaces import Agent
from workers.policies.actor_critic import ActorCritic
from workers.policies.flat import flatten_
from workers.policies.quantile import QuantileNetwork

__all__ = ["Policy", "build"]

Policy = ActorCritic | QuantileNetwork


def build(agent: Agent, config: PolicyConfig, seed: int) -> Policy:
    """The policy of `agent`, in host memory, with initial weights that depend on `seed` alone.

    Its weights are flat already: `flatten_(policy)` gives their `FlatWeights`. torch's own random state is untouched.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = _network(agent, config)
    flatten_(policy)
    return policy


def _network(agent: Agent, config: PolicyConfig) -> Policy:
    algorithm, network = config.algorithm, config.network
    if isinstance(algorithm, PPO):
        return ActorCritic(
            agent.observation.shape,
            agent.action.n,
            network.hidden,
            network.activation,
            normalize_observation=algorithm.normalize_observation,
        )
    return QuantileNetwork(
        agent.observation.shape,
        agent.action.n,
        network.hidden,
        network.activation,
        frames=algorithm.frames,
        cosines=algorithm.cosines,
        acting_quantiles=algorithm.acting_quantiles,
        dueling=algorithm.dueling,
        epsilon=algorithm.epsilon,
    )
