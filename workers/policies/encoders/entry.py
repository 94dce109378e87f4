"""A torch module of the user's own, imported by the name that the run's configuration gives it, and built; as an
encoder tried before anything is learned with it.

In flow: `module:Class` and its keyword arguments. Out flow: the module, or a ConfigurationError in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from protocol.config.network import EntryEncoder, OwnModule
from protocol.errors import ConfigurationError
from workers.policies.encoders.observation_spec import ObservationSpec
from workers.runtime.entry_points import calling, import_entry_point

FORMS = "module:Class, a torch.nn.Module"
NEAR = 1e-3
"""How far a row may be from itself among others, of the size of what is given: sums are in another order there."""


def build_entry(config: EntryEncoder, observation: ObservationSpec, key: str) -> nn.Module:
    """The module for `observation`, tried on two rows."""
    module = build_module(config, observation, observation, key)
    try_module(module, observation, key, config.entry)
    return module


def make_module(config: OwnModule, made_for: tuple[object, ...], given: object, key: str) -> nn.Module:
    """What `config` names, called with `made_for`, which is said to be `given`."""
    kind, facts = import_entry_point(config.entry, f"{key}.entry", FORMS), {"key": key, "value": config.entry}
    with calling(config.entry, lambda **at: ConfigurationError("network_not_built", given=given, **facts, **at)):
        module: Any = kind(*made_for, **config.settings)
    if not isinstance(module, nn.Module):
        raise ConfigurationError("network_not_a_module", **facts, found=type(module).__name__)
    return module


def build_module(config: OwnModule, made_for: object, given: object, key: str) -> nn.Module:
    """The same, which has features."""
    module, facts = make_module(config, (made_for,), given, key), {"key": key, "value": config.entry}
    if type(features := getattr(module, "features", None)) is not int or features < 1:
        raise ConfigurationError("network_features_missing", **facts)
    return module


def check_parameters(module: nn.Module, found: Tensor, key: str, entry: str) -> None:
    """ConfigurationError unless all parameters are float32, and get a gradient from the sum of `found`."""
    facts = {"key": key, "value": entry}
    wrong = [f"{name} {one.dtype}" for name, one in module.named_parameters() if one.dtype != torch.float32]
    if wrong:
        raise ConfigurationError("network_parameters_not_float32", **facts, found=wrong)
    if found.requires_grad:
        found.sum().backward()
    idle = [name for name, one in module.named_parameters() if one.requires_grad and one.grad is None]
    if idle:
        raise ConfigurationError("network_parameters_without_gradient", **facts, found=idle)
    module.zero_grad()


def try_module(
    module: nn.Module,
    observation: ObservationSpec,
    key: str,
    entry: str,
    learned: Callable[[Tensor], Tensor] = lambda found: found,
) -> None:
    """ConfigurationError for what would go wrong later: of two rows of zeros, by which lazy layers are made, and of
    rows that may be seen. `learned`: of what is given, all that gradients come from."""

    def told(*rows: int) -> Tensor:
        leaves = {path: leaf[rows[0] : rows[-1] + 1] for path, leaf in seen.items()}
        facts = {"key": key, "value": entry, "given": observation}
        with calling(entry, lambda **at: ConfigurationError("network_failed", **facts, **at)):
            return module(observation.given(leaves))  # looked at below

    seen = {path: torch.zeros(2, *leaf.shape, dtype=leaf.dtype) for path, leaf in observation.items()}
    found = told(0, 1)
    form, expected = (str(list(shape)) for shape in (getattr(found, "shape", ()), (2, module.features)))
    if not isinstance(found, Tensor) or form != expected:
        form = form if isinstance(found, Tensor) else type(found).__name__
        raise ConfigurationError("network_gives_wrong_shape", key=key, value=entry, found=form, expected=expected)
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigurationError(
                "network_rows_not_independent", key=key, value=entry, part=f"{type(part).__name__} {name}"
            )
    seen = {path: leaf.example(3) for path, leaf in observation.items()}
    before = {path: leaf.clone() for path, leaf in seen.items()}
    found = told(0, 1, 2)
    if any(not torch.equal(seen[path], leaf) for path, leaf in before.items()):
        raise ConfigurationError("network_modifies_input", key=key, value=entry)
    if not bool(found.isfinite().all()):
        raise ConfigurationError("network_not_finite", key=key, value=entry, found=observation)
    check_parameters(module, learned(found), key, entry)
    with torch.no_grad():
        among, again, apart = told(0, 1, 2), told(0, 1, 2), told(2)
    if not torch.equal(among, again):
        raise ConfigurationError("network_not_deterministic", key=key, value=entry)
    if not torch.allclose(among[2:], apart, rtol=NEAR, atol=NEAR * float(among.abs().max())):
        raise ConfigurationError("network_rows_not_independent", key=key, value=entry, part="forward")
