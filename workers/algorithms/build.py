"""From a policy and its configuration to the update that trains it. One of the user's own is imported by the name that
the run's configuration gives it, and tried before anything is learned with it.

In flow: `policy.algorithm`. Out flow: its update, or a ConfigurationError in one sentence.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from protocol.config.run import SAC, AuxiliaryConfig, PolicyConfig, Streamed
from protocol.errors import ConfigurationError, TrainingFault
from protocol.experience.layout import OUTPUT
from workers.algorithms.bc import BCUpdate
from workers.algorithms.c51 import C51Update
from workers.algorithms.common.batches import SegmentBatch, TransitionBatch
from workers.algorithms.common.loss import FROM_POLICY, SECTION
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.rnd import RNDUpdate
from workers.algorithms.sac import SACUpdate
from workers.algorithms.stream import StreamAlgorithm
from workers.algorithms.value_decomposition import DecompositionUpdate
from workers.policies.build import Policy, build, state_size
from workers.policies.checkpoint import to_cpu
from workers.policies.interface import Interface
from workers.policies.networks.declared_outputs import ENTRY, FORMS
from workers.policies.networks.rnd_networks import RNDNetworks
from workers.policies.tensors.flat_weights import flatten_
from workers.runtime.entry_points import calling, import_entry_point
from workers.runtime.torch_setup import FLOAT32, Precision

Update = StreamAlgorithm | ReplayAlgorithm[Any, Any] | RNDUpdate

_KINDS: tuple[type[Any], ...] = (PPOUpdate, IQNUpdate, DQNUpdate, C51Update, DecompositionUpdate, SACUpdate, BCUpdate)
_UPDATES = {algorithm: kind for kind in _KINDS for algorithm in kind.kinds}
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
    kind, made_of = import_entry_point(algorithm.entry, ENTRY, FORMS), flatten_(policy).hash
    facts = {"key": ENTRY, "value": algorithm.entry}
    wanted: type[Any] = StreamAlgorithm if isinstance(algorithm, Streamed) else ReplayAlgorithm
    if not isinstance(kind, type) or not issubclass(kind, wanted):
        fits = [fit.model_fields["name"].default for fit in _UPDATES if issubclass(fit, getattr(kind, "kinds", ()))]
        hint = f", or set {SECTION}.name to one of {', '.join(fits)}" if fits else ""
        name = {"algorithm": algorithm.name, "expected": wanted.__name__}
        raise ConfigurationError("algorithm_of_other_base", **facts, **name, hint=hint)
    with calling(algorithm.entry, lambda **at: ConfigurationError("algorithm_not_built", **facts, **at)):
        update: StreamAlgorithm | ReplayAlgorithm[Any, Any] = kind(policy, config, seed)
        if not hasattr(update, "generator"):
            raise AttributeError("its __init__ does not call the base's")
    if flatten_(policy).hash != made_of:  # actors would be sent what they have no place for
        raise ConfigurationError("algorithm_changes_policy", **facts)
    return update


def try_algorithm(
    interface: Interface,
    config: PolicyConfig | Any,
    arithmetic: Precision = FLOAT32,
    device: str | torch.device = "cpu",
    repeats: bool = False,
) -> str:
    """What a line says of the user's own algorithm that `config` names, once an update of it was made, of a policy made
    for this; empty where it names none. ConfigurationError for what would go wrong later, as for numbers that another
    process would not draw where it `repeats` updates."""
    entry = getattr(config.algorithm, "entry", None)
    if entry is None:
        return ""
    facts = {"key": ENTRY, "value": entry}
    policy, other = (build(interface, config, 0) for _ in range(2))
    batch = _few_rows(interface, policy, config)
    columns = {field.name: getattr(batch, field.name) for field in fields(batch)}
    batch = replace(batch, **{name: one.to(device) for name, one in columns.items() if one is not None})
    first, second = (build_own(one.to(device), config, 0) for one in (policy, other))
    first.arithmetic, before = arithmetic, {name: one.detach().clone() for name, one in _parts(first).items()}
    chance = torch.get_rng_state()
    with calling(entry, lambda **at: ConfigurationError("algorithm_failed", **facts, **at)):
        try:
            first.update(batch)
        except TrainingFault as fault:
            raise ConfigurationError("loss_not_finite", **facts, reason=str(fault)) from fault
        drawn = not torch.equal(torch.get_rng_state(), chance)
        second.load_state(load(save(to_cpu(first.state()))))
    found = "a tensor that no weight has a part in" if not first.optimizer.gradient.any() else ""
    if not first.train_steps:
        found = "no step of self.optimizer"
    if repeats and drawn:
        found = "numbers that were not drawn by self.generator"
    if found:
        raise ConfigurationError("loss_unfit", **facts, field="total", found=found, expected=FROM_POLICY)
    moves = any(isinstance(one, torch.optim.Optimizer) for one in vars(first).values())
    again = _parts(second)
    for name, part in _parts(first).items():
        if not moves and part.grad is not None and part.grad.any() and torch.equal(part, before[name]):
            raise ConfigurationError("algorithm_part_lost", **facts, field=name, reason="nothing moves")
        if name not in again or not torch.equal(part, again[name]):
            raise ConfigurationError("algorithm_part_lost", **facts, field=name, reason="load_state does not restore")
    told = " ".join(f"{name}={value}" for name, value in first.settings)
    return f"{entry} algorithm={config.algorithm.name} {told}".rstrip()


def _parts(update: Any) -> dict[str, Tensor]:
    """Tensors of modules, parameters and optimisers of torch that are its own, and not its policy's, by name."""
    found: dict[str, Any] = {}
    for name, one in vars(update).items():
        if isinstance(one, nn.Parameter):
            found[name] = one
        elif isinstance(one, nn.Module):
            found |= {f"{name}.{key}": part for key, part in one.state_dict(keep_vars=True).items()}
        elif isinstance(one, torch.optim.Optimizer):
            for number, state in enumerate(one.state.values()):
                found |= {f"{name}.{number}.{key}": part for key, part in state.items()}
    known = {id(one) for one in update.policy.state_dict(keep_vars=True).values()}
    return {name: one for name, one in found.items() if isinstance(one, Tensor) and id(one) not in known}


def _few_rows(interface: Interface, policy: Any, config: PolicyConfig) -> Any:
    """A batch of rows in which `policy` acted; of segments one is short, one has a termination and one a truncation."""
    algorithm: Any = config.algorithm
    stream, remembers = isinstance(algorithm, Streamed), state_size(policy)
    noise, shown, actions = np.random.default_rng(0), interface.observation_encoding, interface.action_encoding

    def seen(*lead: int) -> Tensor:
        """Random where it is numbers; zeros are everywhere something that may be seen."""
        size = (*lead, *shown.shape)
        rows = noise.standard_normal(size) if shown.dtype.kind == "f" else np.zeros(size)
        return torch.from_numpy(rows.astype(shown.dtype))

    lead = (_ROWS, _STEPS) if stream else (_ROWS,)
    frames, stacked = algorithm.frames, stream and algorithm.frames > 1
    whole = seen(_ROWS, frames + _STEPS) if stream else seen(_ROWS, frames)
    observation = whole[:, frames - 1 :] if stream else whole
    stack = torch.arange(_STEPS + 1)[:, None] + torch.arange(frames)
    legal = np.ones((math.prod(lead), sum(actions.head_sizes)), np.bool_) if actions.masked else None
    state = {"state": np.zeros((math.prod(lead), remembers), np.float32)} if remembers else {}
    shown_then = whole[:, stack] if stacked else observation
    acted = policy.act(shown_then[:, :-1].flatten(0, 1) if stream else observation, noise, legal=legal, **state)
    columns = {name: torch.from_numpy(column).unflatten(0, lead) for name, column in acted.items() if name != "state"}
    kept = [columns.pop(name).reshape(*lead, -1) for name in acted if name.startswith(OUTPUT)]
    if kept:
        columns["outputs"] = torch.cat(kept, -1)
    columns |= {"observation": observation, "reward": torch.from_numpy(noise.standard_normal(lead, np.float32))}
    if legal is not None:
        legal_now = stream or isinstance(algorithm, SAC)
        for name in ["legal"] * legal_now + ["next_legal"] * (not stream):
            columns[name] = torch.from_numpy(legal).unflatten(0, lead)
    if not stream:
        if algorithm.priority_alpha:
            columns["weight"] = torch.ones(lead)
        return TransitionBatch(
            discount=torch.full(lead, 0.9), next_observation=seen(_ROWS, algorithm.frames), **columns
        )
    if stacked:
        columns |= {"history": whole, "stack": stack.expand(_ROWS, -1, -1)}
    if remembers:
        columns["state"] = torch.zeros(_ROWS, remembers)
    if algorithm.central_critic and (privileged := interface.privileged) is not None:
        columns["privileged"] = torch.zeros(_ROWS, _STEPS + 1, privileged.width)
        columns["final_privileged"] = torch.zeros(_ROWS, 1, privileged.width)
    columns["terminated"], columns["truncated"] = ends = torch.zeros(2, *lead, dtype=torch.bool)
    ends[0, 1, 1] = ends[1, 2, 2] = True
    columns["valid"], columns["final_row"] = torch.tensor([5, 5, 5, 3]), torch.tensor([[-1], [-1], [2], [-1]])
    return SegmentBatch(final_observation=seen(_ROWS, 1), **columns)
