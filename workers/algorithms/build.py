"""From a policy and its configuration to the update that trains it. One of the user's own is imported by the name that
the run's configuration gives it, and tried before anything is learned with it.

In flow: `policy.algorithm`. Out flow: its update, or a ConfigurationError in one sentence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protocol.config.run import BC, C51, DQN, IMPALA, IQN, PPO, QMIX, SAC, VDN, AuxiliaryConfig, PolicyConfig, Streamed
from protocol.errors import ConfigurationError, RookeryError, TrainingFault
from protocol.errors.origin import blame, is_users
from workers.algorithms.bc import BCUpdate
from workers.algorithms.c51 import C51Update
from workers.algorithms.common.batches import SegmentBatch, TransitionBatch
from workers.algorithms.common.loss import SECTION
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.rnd import RNDUpdate
from workers.algorithms.sac import SACUpdate
from workers.algorithms.stream import StreamAlgorithm
from workers.algorithms.value_decomposition import DecompositionUpdate
from workers.policies.build import Policy, build
from workers.policies.interface import Interface
from workers.policies.networks.rnd_networks import RNDNetworks
from workers.runtime.entry_points import import_entry_point

Update = StreamAlgorithm | ReplayAlgorithm[Any, Any] | RNDUpdate

_UPDATES: dict[type[Any], type[Any]] = {
    PPO: PPOUpdate,
    IMPALA: PPOUpdate,
    IQN: IQNUpdate,
    DQN: DQNUpdate,
    C51: C51Update,
    VDN: DecompositionUpdate,
    QMIX: DecompositionUpdate,
    SAC: SACUpdate,
    BC: BCUpdate,
}
_KEY = f"{SECTION}.entry"
_FORMS = "module:Class, a rookery.StreamAlgorithm or rookery.ReplayAlgorithm"
_FITS: dict[type[Any], tuple[type[Any], ...]] = {
    StreamAlgorithm: (PPO, IMPALA),
    ReplayAlgorithm: (DQN, C51, IQN, SAC, VDN, QMIX),
}
"""What each base can build on."""
_ROWS, _STEPS = 4, 5
"""Segments, or transitions, and steps of a segment, with which one is tried."""


def build_update(policy: Policy | RNDNetworks, config: PolicyConfig | AuxiliaryConfig, seed: int = 0) -> Update:
    """The update of `config`'s algorithm for `policy`, which was built by the same and must be on its final device.

    `seed` decides the order of minibatches, quantile fractions and amounts drawn. Raises ValueError for networks of an
    auxiliary with a policy's configuration and the other way round, ConfigurationError for an algorithm of the user's
    own that cannot be made.
    """
    if isinstance(policy, RNDNetworks) or isinstance(config, AuxiliaryConfig):
        if isinstance(policy, RNDNetworks) and isinstance(config, AuxiliaryConfig):
            return RNDUpdate(policy, config, seed)
        raise ValueError("networks and configuration are of different kinds; build both of one plan")
    if getattr(config.algorithm, "entry", None) is not None:
        return build_own(policy, config, seed)
    update: Update = _UPDATES[type(config.algorithm)](policy, config, seed)
    return update


def build_own(policy: Any, config: PolicyConfig, seed: int) -> StreamAlgorithm | ReplayAlgorithm[Any, Any]:
    """The update by the class that `config` names."""
    algorithm: Any = config.algorithm
    kind = import_entry_point(algorithm.entry, _KEY, _FORMS)
    bases = [base for base in _FITS if isinstance(kind, type) and issubclass(kind, base)]
    if not any(isinstance(algorithm, _FITS[base]) for base in bases):
        wanted = next(base for base, fits in _FITS.items() if isinstance(algorithm, fits))
        names = [fit.model_fields["name"].default for base in bases for fit in _FITS[base]]
        hint = f", or set {SECTION}.name to one of {', '.join(names)}" if names else ""
        facts = {"key": _KEY, "value": algorithm.entry, "algorithm": algorithm.name}
        raise ConfigurationError("algorithm_of_other_base", **facts, expected=wanted.__name__, hint=hint)
    try:
        update: StreamAlgorithm | ReplayAlgorithm[Any, Any] = kind(policy, config, seed)
    except RookeryError:
        raise
    except BaseException as fault:
        if not is_users(fault):
            raise
        raise ConfigurationError("algorithm_not_built", key=_KEY, value=algorithm.entry, **blame(fault)) from fault
    return update


def try_algorithm(interface: Interface, config: PolicyConfig | Any) -> str:
    """What a line says of the user's own algorithm that `config` names, once an update of it was made, of a policy made
    for this; empty where it names none. ConfigurationError for what would go wrong later."""
    entry = getattr(config.algorithm, "entry", None)
    if entry is None:
        return ""
    policy: Any = build(interface, config, 0)
    update = build_own(policy, config, 0)
    try:
        update.update(_few_rows(interface, policy, config))
    except TrainingFault as fault:
        raise ConfigurationError("loss_not_finite", key=_KEY, value=entry, reason=str(fault)) from fault
    told = " ".join(f"{name}={value}" for name, value in update.settings)
    return f"{entry} on {config.algorithm.name} {told}".rstrip()


def _few_rows(interface: Interface, policy: Any, config: PolicyConfig) -> Any:
    """A batch of rows in which `policy` acted; of segments one is short, one has a termination and one a truncation."""
    algorithm: Any = config.algorithm
    stream, remembers = isinstance(algorithm, Streamed), config.network.state
    noise, shown, actions = np.random.default_rng(0), interface.observation_encoding, interface.action_encoding

    def seen(*lead: int) -> Tensor:
        """Random where it is numbers; zeros are everywhere something that may be seen."""
        size = (*lead, *shown.shape)
        rows = noise.standard_normal(size) if shown.dtype.kind == "f" else np.zeros(size)
        return torch.from_numpy(rows.astype(shown.dtype))

    lead = (_ROWS, _STEPS) if stream else (_ROWS,)
    observation = seen(_ROWS, _STEPS + 1) if stream else seen(_ROWS, algorithm.frames)
    legal = np.ones((math.prod(lead), sum(actions.head_sizes)), np.bool_) if actions.masked else None
    state = {"state": np.zeros((math.prod(lead), remembers), np.float32)} if remembers else {}
    acted = policy.act(observation[:, :-1].flatten(0, 1) if stream else observation, noise, legal=legal, **state)
    columns = {name: torch.from_numpy(column).unflatten(0, lead) for name, column in acted.items() if name != "state"}
    columns |= {"observation": observation, "reward": torch.from_numpy(noise.standard_normal(lead, np.float32))}
    if legal is not None:
        columns["legal" if stream else "next_legal"] = torch.from_numpy(legal).unflatten(0, lead)
    if not stream:
        if algorithm.priority_alpha:
            columns["weight"] = torch.ones(lead)
        return TransitionBatch(
            discount=torch.full(lead, 0.9), next_observation=seen(_ROWS, algorithm.frames), **columns
        )
    if remembers:
        columns["state"] = torch.zeros(_ROWS, remembers)
    if algorithm.central_critic and (privileged := interface.privileged) is not None:
        columns["privileged"] = torch.zeros(_ROWS, _STEPS + 1, privileged.width)
        columns["final_privileged"] = torch.zeros(_ROWS, 1, privileged.width)
    columns["terminated"], columns["truncated"] = ends = torch.zeros(2, *lead, dtype=torch.bool)
    ends[0, 1, 1] = ends[1, 2, 2] = True
    columns["valid"], columns["final_row"] = torch.tensor([5, 5, 5, 3]), torch.tensor([[-1], [-1], [2], [-1]])
    return SegmentBatch(final_observation=seen(_ROWS, 1), **columns)
