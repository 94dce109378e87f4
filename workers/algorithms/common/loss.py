"""What an algorithm says of a batch: its loss, and what is to be told of it. Where the class is the user's own, what it
says is checked, and its keys are.

In flows: a class with `Config` and `loss`; a batch. Out flow: its settings and its `Loss`, or a ConfigurationError in
one sentence.

Legend: `B` transitions, `T` segment length, `b` segments of a minibatch, `K` policies of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from protocol.config.base import complaint
from protocol.config.trainable import AlgorithmConfig
from protocol.errors import ConfigurationError, TrainingFault
from workers.policies.networks.declared_outputs import ENTRY
from workers.runtime.entry_points import calling

SECTION = "policy.algorithm"
FROM_POLICY = "one that is made of what the policy says of the batch"
_OURS = frozenset(
    ("loss", "grad_norm", "weight_delta", "reward_mean", "learning_rate", "entropy_coefficient", "epsilon", "rows")
)
"""What updates say themselves."""


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
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise TypeError("Config is no pydantic.BaseModel")
    for name in model.model_fields.keys() & type(algorithm).model_fields.keys():
        key, known = f"{SECTION}.{name}", algorithm.name
        raise ConfigurationError("algorithm_key_taken", key=key, value=kind.__name__, algorithm=known)
    given = algorithm.model_extra or {}
    if "extra" not in model.model_config:  # what pydantic lets pass is a slip of the pen here
        model = type(model)(model.__name__, (model,), {}, extra="forbid")  # type: ignore[misc] # a class of its kind
    try:
        return model.model_validate(given)
    except ValidationError as fault:
        raise complaint(fault, model, given, SECTION) from None


def loss_of(algorithm: Any, batch: Any, *rows: Any) -> Loss:
    """What `algorithm` says of `batch`, and of how its rows look. What a class of the user's own says is checked:
    ConfigurationError for what can never be learned from, TrainingFault for priorities or targets of this batch that
    are not finite."""
    entry = getattr(algorithm.algorithm, "entry", None)
    if entry is None:
        found: Loss = algorithm.loss(algorithm.policy, batch, *rows)
        return found
    facts = {"key": ENTRY, "value": entry}
    given = [(field.name, one) for field in fields(batch) if isinstance(one := getattr(batch, field.name), Tensor)]
    versions = [one._version for _, one in given]
    with calling(entry, lambda **at: ConfigurationError("algorithm_failed", **facts, **at)):
        found = algorithm.loss(algorithm.policy, batch, *rows)
    changed = [name for (name, one), version in zip(given, versions, strict=True) if one._version != version]
    wrong = [(f"batch.{name}", "a tensor that it has changed in place", "a tensor of its own") for name in changed]
    for field, said, expected in (*wrong, *_unfit(found, algorithm, batch.reward)):
        raise ConfigurationError("loss_unfit", **facts, field=field, found=said, expected=expected)
    priorities, targets = (None if one is None else one.detach().float() for one in found[2:])
    judged = {"targets": targets if targets is None or not rows else targets[batch.mask.bool()]}
    judged["priorities"] = None if priorities is None else priorities.where(priorities >= 0, torch.nan)
    for field, numbers in judged.items():
        if numbers is not None and not bool(numbers.isfinite().all()):
            raise TrainingFault("loss_part_not_finite", field=field, value=entry)
    return found._replace(priorities=priorities, targets=targets)


def _unfit(found: Any, algorithm: Any, reward: Tensor) -> Iterator[tuple[str, str, str]]:
    """Parts of what a loss gave for rows with this `reward` that nothing can be learned from: which, what they are, and
    what they are to be."""

    def form(shape: Any, device: Any) -> str:
        return f"{f'a tensor {list(shape)}' if len(shape) else 'a scalar tensor'} on {device}"

    if not isinstance(found, Loss) or not isinstance(found.metrics, Mapping):
        part = found.metrics if isinstance(found, Loss) else found
        yield "its loss", type(part).__name__, "a rookery.Loss(total, metrics) with metrics by name"
        return
    parts: dict[str, tuple[Any, torch.Size]] = {"total": (found.total, torch.Size())}
    parts |= {f"metrics[{name!r}]": (metric, torch.Size()) for name, metric in found.metrics.items()}
    if found.priorities is not None or algorithm.algorithm.priority_alpha:
        parts["priorities"] = found.priorities, reward.shape[-1:]
    if found.targets is not None or getattr(algorithm.algorithm, "normalize_return", False):
        parts["targets"] = found.targets, reward.shape
    for field, (part, shape) in parts.items():
        if not isinstance(part, Tensor):
            missing = {"priorities": ", or set priority_alpha: 0", "targets": ", or set normalize_return: false"}
            yield field, type(part).__name__, form(shape, reward.device) + missing.get(field, "")
        elif part.shape != shape or part.device != reward.device:
            yield field, form(part.shape, part.device), form(shape, reward.device)
    for name in found.metrics:
        if not isinstance(name, str) or not name.isidentifier() or name in _OURS:
            yield "the name of a metric", repr(name), f"another word; ours are {', '.join(sorted(_OURS))}"
    if (known := vars(algorithm).setdefault("_metrics", names := [*found.metrics])) != names:
        yield "metrics", ", ".join(names), f"{', '.join(known)} always"
    if torch.is_grad_enabled() and not found.total.requires_grad:
        yield "total", "a tensor without a gradient", FROM_POLICY
