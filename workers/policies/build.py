"""From what a policy sees and does and its configuration to the policy itself, flat and reproducible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import overload

import torch
from torch import nn

from protocol.config.network import AnyNetwork, EntryNetwork, MLPEncoder
from protocol.config.run import BC, C51, IQN, QMIX, SAC, VDN, AuxiliaryConfig, PolicyConfig, Streamed
from workers.policies.cores.entry import build_core
from workers.policies.distributions import Heads, OwnHeads
from workers.policies.encoders.network_entry import build_network
from workers.policies.encoders.own_network import OwnNetwork
from workers.policies.encoders.policy_encoder import PolicyEncoder
from workers.policies.encoders.team_encoder import TeamEncoder
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic, OwnActorCritic
from workers.policies.networks.categorical_network import C51Policy
from workers.policies.networks.declared_outputs import DeclaredOutputs
from workers.policies.networks.q_policy import DQNPolicy, QNetworkSpec, QPolicy
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.networks.recurrent import Core
from workers.policies.networks.rnd_networks import RNDNetworks
from workers.policies.networks.soft_actor_critic import SoftActorCritic
from workers.policies.networks.team_q_network import MemberTower, TeamLayout, TeamQPolicy
from workers.policies.team_layout import common_of, members_of
from workers.policies.tensors.flat_weights import FlatWeights, flatten_
from workers.policies.tensors.kernels import Activation

Policy = ActorCritic | CentralActorCritic | IQNPolicy | C51Policy | DQNPolicy | TeamQPolicy | SoftActorCritic


@overload
def build(interface: Interface, config: PolicyConfig, seed: int) -> Policy: ...
@overload
def build(interface: Interface, config: AuxiliaryConfig, seed: int) -> RNDNetworks: ...
@overload
def build(interface: Interface, config: PolicyConfig | AuxiliaryConfig, seed: int) -> Policy | RNDNetworks: ...


def build(interface: Interface, config: PolicyConfig | AuxiliaryConfig, seed: int) -> Policy | RNDNetworks:
    """The policy, or auxiliary, for `interface`, in host memory, with initial weights that depend on `seed` alone.

    Its weights are flat already: `flatten_(policy)` gives their `FlatWeights`. torch's own random state is untouched.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(config, AuxiliaryConfig):
            policy: Policy | RNDNetworks = _auxiliary(interface, config)
        else:
            policy = _network(interface, config)
            _declare(policy, config)
    flatten_(policy)
    return policy


def published_weights(policy: Policy | RNDNetworks) -> FlatWeights:
    """What travels of `policy`'s weights: what acting needs, where that lies by itself, or else all of them."""
    weights = flatten_(policy)
    return weights.part("actor.") if isinstance(policy, SoftActorCritic | CentralActorCritic) else weights


def state_size(policy: nn.Module) -> int:
    """Numbers that `policy` remembers of each stream, of all members of a team."""
    if isinstance(policy, TeamQPolicy):
        return sum(policy.online.states)
    return next((one.state_size for one in policy.modules() if isinstance(one, Core)), 0)


def _network(interface: Interface, config: PolicyConfig) -> Policy:
    algorithm, network, actions = config.algorithm, config.network, interface.action_encoding
    if isinstance(algorithm, Streamed | BC):
        return _with_value(interface, config, algorithm)
    shape, hidden, activation = interface.observation_encoding.shape, network.hidden, network.activation
    if isinstance(algorithm, SAC):
        return SoftActorCritic(
            shape,
            actions.continuous,
            hidden,
            activation,
            choices=actions.head_sizes[0] if actions.head_sizes else None,
            frames=algorithm.frames,
            temperature=algorithm.temperature,
            encoder=_encoders(interface, activation, algorithm.frames),
        )
    if isinstance(algorithm, VDN | QMIX):
        return _decomposed(interface, algorithm, network)
    how = algorithm.frames, algorithm.dueling, algorithm.noisy
    choices, epsilon, whole = actions.head_sizes[0], algorithm.epsilon, isinstance(network, EntryNetwork)
    wanted = {"atoms": (algorithm.atoms, choices)} if isinstance(algorithm, C51) else {"q": (choices,)}
    encoder = _encoders(interface, activation, algorithm.frames, wanted=wanted)
    spec = QNetworkSpec(shape, choices, hidden, activation, *how, encoder, _cores(network), whole)
    if isinstance(algorithm, IQN):
        return IQNPolicy(spec, epsilon, cosines=algorithm.cosines, acting_quantiles=algorithm.acting_quantiles)
    if isinstance(algorithm, C51):
        return C51Policy(spec, epsilon, atoms=algorithm.atoms, v_min=algorithm.v_min, v_max=algorithm.v_max)
    return DQNPolicy(spec, epsilon)


def _declare(policy: Policy, config: PolicyConfig) -> None:
    """Gives `policy` the outputs that an algorithm of the user's own declares."""
    if not config.declares or not isinstance(policy, ActorCritic | QPolicy):
        return
    features, hidden = None, config.network.hidden
    if isinstance(policy, QPolicy):
        features, hidden = policy.online.perceptron.outputs, ()
    elif not isinstance(policy, OwnActorCritic):
        features = policy.features + (policy.core.size if policy.core is not None else 0)
    policy.declared = DeclaredOutputs(config.declares, features, hidden, config.network.activation)
    policy.modular = True  # torch alone computes them


def _auxiliary(interface: Interface, config: AuxiliaryConfig) -> RNDNetworks:
    network, shown = config.network, interface.observation_encoding
    flat = None if interface.encoder is None else PolicyEncoder(MLPEncoder(), shown, network.activation)
    return RNDNetworks(shown.shape, config.algorithm.features, network.hidden, network.activation, flat)


def _encoders(
    interface: Interface,
    activation: Activation,
    frames: int = 1,
    *,
    normalize: bool = False,
    wanted: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Callable[[], PolicyEncoder] | None:
    """Makes the encoder anew, for each network that has one of its own; None where nothing reads what is seen first.
    `wanted`: shapes of the outputs that a whole network has to give."""
    shown, actions, reader = interface.observation_encoding, interface.action_encoding, interface.encoder
    if reader is None:
        return None
    made = partial(PolicyEncoder, encoding=shown, activation=activation, frames=frames, normalize=normalize)
    if isinstance(reader, EntryNetwork):
        return partial(made, partial(build_network, reader, actions.spec, wanted))
    return partial(made, reader)


def _cores(network: AnyNetwork) -> Callable[[int], Core] | None:
    """Makes what remembers so many features anew, for each network that has one of its own."""
    return None if network.core is None else partial(build_core, network.core)


def _with_value(
    interface: Interface, config: PolicyConfig, algorithm: Streamed | BC
) -> ActorCritic | CentralActorCritic:
    """A policy that learns from streams, or clones. What is deployed knows nothing that only learners see: there the
    critic is never asked."""
    network, actions = config.network, interface.action_encoding
    heads = Heads(actions.head_sizes, actions.continuous, actions.order(network.autoregressive))
    frames, shape, activation = algorithm.frames, interface.observation_encoding.shape, network.activation
    shape, hidden = (shape if frames == 1 else (frames, *shape)), network.hidden
    normalize, declared = bool(algorithm.normalize_observation), {one.name: one.shape for one in config.declares}
    wanted = {"policy": (heads.outputs,), **declared, "value": ()}
    new = _encoders(interface, activation, frames, normalize=normalize, wanted=wanted)
    encoder = None if new is None else new()
    if encoder is not None and isinstance(own := encoder.network, OwnNetwork):
        heads = OwnHeads(heads.sizes, heads.continuous, network=own) if own.distributes else heads
        return OwnActorCritic(shape, heads, encoder)
    inputs = math.prod(shape) if encoder is None else encoder.features
    core = None if network.core is None else build_core(network.core, inputs)
    if isinstance(algorithm, BC) or not algorithm.central_critic:
        return ActorCritic(
            shape,
            heads,
            hidden,
            activation,
            share_layers=network.share_layers,
            normalize_observation=normalize,
            core=core,
            encoder=encoder,
        )
    privileged = 0 if interface.privileged is None else interface.privileged.width
    both = None if new is None or encoder is None else (encoder, new())
    return CentralActorCritic(
        shape, privileged, heads, hidden, activation, normalize_observation=normalize, core=core, encoders=both
    )


def _decomposed(interface: Interface, algorithm: VDN | QMIX, network: AnyNetwork) -> TeamQPolicy:
    members, shown, frames = members_of(interface), interface.observation_encoding, algorithm.frames
    how, core = (1, algorithm.dueling, algorithm.noisy), _cores(network)
    spec = QNetworkSpec((), 0, network.hidden, network.activation, *how, core=core)

    def tower() -> MemberTower:
        sight, encoder = TeamLayout(members, common_of(interface), frames), None
        if interface.encoder is not None and not isinstance(interface.encoder, EntryNetwork):
            read = partial(TeamEncoder, interface.encoder, shown, tuple(one.name for one in members))
            encoder = read(network.activation, frames=frames, shared=algorithm.shared)
            sight = TeamLayout.of_features(members, encoder.widths)
        mixing = algorithm.mixing if isinstance(algorithm, QMIX) else None
        return MemberTower(sight, spec, encoder, shared=algorithm.shared, mixing=mixing)

    return TeamQPolicy(shown.shape, frames, algorithm.epsilon, tower(), tower())
