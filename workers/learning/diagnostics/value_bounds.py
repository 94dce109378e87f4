"""Whether what a policy values, and how steep its loss is, can be so at all. Pure.

In flows: rows of batches, and what their updates said. Out flow: of each finding the number, and the most it may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from protocol.config.run import C51, AuxiliaryConfig, PolicyConfig
from workers.learning.diagnostics.batch_statistics import Sample
from workers.metrics.diagnostics import Excess

_BEYOND = 3.0
"""Times what rewards and gamma allow, or what the new network said before it had learned anything, if that is more: an
estimate may overshoot, and where gamma is below 1 a sound update only shrinks what is wrong at first."""
_STEEPER = 1_000.0
"""Times the steepest gradient of the first batches."""
_FIRST = 10
"""Batches, from the first with a reward on, in which gradients are taken for what is usual."""
_CUT = 1_000.0
"""Times the norm to which gradients are cut."""
_ABSOLUTE = 100.0
"""Times the error from which on only its sign counts."""
_EDGE = 0.05
"""Part of what a support can tell in which values lie at its end, and by which returns go at least beyond it."""
_HORIZON = 1_000.0
"""Steps at most over which what a support cuts off adds up."""


class ValueBounds:
    """Of one policy with a discount of `gamma` a step, whose values lie in `support` if they have one, whose gradients
    are cut to `max_norm`, and whose loss tells errors beyond `kappa` by their sign alone."""

    def __init__(
        self,
        gamma: float,
        support: tuple[float, float] | None = None,
        max_norm: float = math.inf,
        kappa: float | None = None,
    ) -> None:
        self.gamma, self._support, self._max_norm = gamma, support, max_norm
        self._kappa = math.inf if kappa is None else kappa
        self._largest = self._usual = 0.0
        self._new = 0.0
        self._batches = 0

    @classmethod
    def of(cls, config: PolicyConfig | AuxiliaryConfig) -> ValueBounds:
        """Of a policy, or of an auxiliary, which counts nothing that comes later."""
        algorithm = config.algorithm
        support = (algorithm.v_min, algorithm.v_max) if isinstance(algorithm, C51) else None
        gamma, kappa = getattr(algorithm, "discount", 0.0), getattr(algorithm, "kappa", None)
        return cls(gamma, support, config.max_grad_norm, kappa)

    def look(self, seen: Sample, metrics: Mapping[str, float]) -> dict[str, Excess]:
        """finding -> what its number is in one more batch, and the most that is sound."""
        found: dict[str, Excess] = {}
        if "reward" not in seen.scalars:
            return found
        bonus = metrics.get("intrinsic_max", 0.0)
        self._largest = max(self._largest, float(seen.scalars["reward"].abs().max()) + bonus)
        value = metrics.get("value_mean")
        if value is None and "value" in seen.scalars:
            value = float(seen.scalars["value"].mean())
        if value is not None:
            kept = float(seen.scalars["discount"].max()) if "discount" in seen.scalars else self.gamma
            worth = self._largest + metrics.get("temperature", 0.0) * abs(metrics.get("entropy", 0.0))
            worth = worth / (1 - kept) if kept < 1 else math.inf
            estimate = max(abs(value), abs(metrics.get("target_mean", 0.0)))
            self._new = self._new or estimate
            found["values_impossible"] = estimate, _BEYOND * max(1.0, worth, self._new)
            if self._support is not None:
                low, high = self._support
                # a return of V where v_max is the most loses (1 - gamma) * (V - v_max) at each step
                beyond = metrics["target_cut"] * min(_HORIZON, 1 / (1 - kept) if kept < 1 else math.inf)
                reach = (0.5 - _EDGE) * (high - low) if beyond > _EDGE * (high - low) else math.inf
                found["values_at_the_end"] = abs(value - (low + high) / 2), reach
        scales = [("td_error", _ABSOLUTE * self._kappa), ("grad_norm", _CUT * self._max_norm)]
        told = [(metrics[name], most) for name, most in scales if name in metrics]
        if told:
            found["reward_scale"] = max(told, key=lambda one: one[0] / one[1])
        if "grad_norm" in metrics and self._largest:
            self._batches += 1
            if self._batches <= _FIRST:
                self._usual = max(self._usual, metrics["grad_norm"])
            elif self._usual:
                found["gradient_grew"] = metrics["grad_norm"], _STEEPER * self._usual
        return found
