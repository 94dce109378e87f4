"""What an algorithm says of a batch: its loss, and what is to be told of it. Where the class is the user's own, what it
says is checked, and its keys are.

In flows: a class with `Config` and `loss`; a batch. Out flow: its settings and its `Loss`, or a ConfigurationError in
one sentence.

Legend: `B` transitions, `T` segment length, `b` segments of a minibatch, `K` policies of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from protocol.config.base import complaint
from protocol.config.trainable import AlgorithmConfig
from protocol.errors import ConfigurationError, RookeryError
from protocol.errors.origin import blame, is_users

SECTION = "policy.algorithm"


class Loss(NamedTuple):
    """What a batch asks of a policy; of K policies as one everything has a first dimension K."""

    total: Tensor
    """A scalar with a gradient, which is descended"""
    metrics: dict[str, Tensor]
    """Scalars by name for the log; `loss` is there anyway"""
    priorities: Tensor | None = None
    """How much more often this is to be drawn again, where `priority_alpha` says so: on replay [B], how far each
    estimate was from its target; on a stream [b], of each segment"""
    targets: Tensor | None = None
    """On a stream [T, b]: what the values should be, in the unit of the reward, which `normalize_return` goes by"""


def parse_settings(kind: type[Any], algorithm: AlgorithmConfig | Any) -> BaseModel:
    """The keys of the section `algorithm` that belong to the class `kind`, as its `Config`; ConfigurationError for one
    that it does not know, or that the section has itself."""
    model: type[BaseModel] = kind.Config
    for name in model.model_fields.keys() & type(algorithm).model_fields.keys():
        key, known = f"{SECTION}.{name}", algorithm.name
        raise ConfigurationError("algorithm_key_taken", key=key, value=kind.__name__, algorithm=known)
    given = getattr(algorithm, "settings", {})
    if "extra" not in model.model_config:  # what pydantic lets pass is a slip of the pen here
        model = type(model)(model.__name__, (model,), {}, extra="forbid")  # type: ignore[misc] # a class of its kind
    try:
        return model.model_validate(given)
    except ValidationError as fault:
        raise complaint(fault, model, given, SECTION) from None


def checked_loss(algorithm: Any, batch: Any, priorities: tuple[int, ...], targets: tuple[int, ...]) -> Loss:
    """What the user's `algorithm` says of `batch`, whose priorities and targets have these shapes."""
    facts = {"key": f"{SECTION}.entry", "value": algorithm.algorithm.entry}
    try:
        found = algorithm.loss(algorithm.policy, batch)
    except RookeryError:
        raise
    except BaseException as fault:
        if not is_users(fault):
            raise
        raise ConfigurationError("loss_failed", **facts, **blame(fault)) from fault
    if not isinstance(found, Loss) or not isinstance(found.metrics, Mapping):
        kind = type(found.metrics if isinstance(found, Loss) else found).__name__
        raise ConfigurationError("loss_not_a_loss", **facts, found=kind)
    parts: dict[str, tuple[Any, tuple[int, ...]]] = {"total": (found.total, ())}
    parts |= {f"metrics[{name!r}]": (metric, ()) for name, metric in found.metrics.items()}
    if found.priorities is not None or algorithm.algorithm.priority_alpha:
        parts["priorities"] = found.priorities, priorities
    if found.targets is not None:
        parts["targets"] = found.targets, targets
    for field, (part, expected) in parts.items():
        if not isinstance(part, Tensor) or part.shape != expected:
            shape = str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__
            wanted = str(list(expected)) if expected else "a scalar tensor"
            raise ConfigurationError("loss_shape_wrong", **facts, field=field, found=shape, expected=wanted)
    names = [*found.metrics]
    if (known := vars(algorithm).setdefault("_metrics", names)) != names:
        raise ConfigurationError("loss_shape_wrong", **facts, field="metrics", found=names, expected=f"{known} always")
    if torch.is_grad_enabled() and not found.total.requires_grad:
        raise ConfigurationError("loss_without_gradient", **facts)
    return found
