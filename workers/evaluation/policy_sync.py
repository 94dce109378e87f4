"""Policies of a run that goes on, as they are evaluated: their weights change when they are told to, and only then.

In flows: weights of every policy; how far the run is. Out flows: deciders; when the next evaluation is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EvaluationConfig
from workers.planning.policy_plan import PolicyPlan
from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.export.export_manifest import frames_of
from workers.rollout.acting_policy import ActingPolicy


class SyncedPolicy:
    """The policy of `plan`: a `InferencePolicy`. `performer`: of an actor that has it for itself."""

    def __init__(self, plan: PolicyPlan, performer: ActingPolicy | None = None) -> None:
        self.performer = performer or ActingPolicy(plan.interface, plan.config)
        self.interface, self.frames = plan.interface, frames_of(plan.config)
        self.state, self.shared = self.performer.state, plan.common is not None
        self._undrawn = np.random.default_rng(0)
        """Stands for noise where nothing is drawn."""

    def infer(
        self, seen: NDArray[Any], noise: Noise | None, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray[Any]]:
        """As `ActingPolicy.act`; the likeliest without `noise`."""
        return self.performer.act(seen, self._undrawn if noise is None else noise, noise is None, legal, state)


class EvaluationSchedule:
    """When to evaluate next. `clock` in seconds."""

    def __init__(self, config: EvaluationConfig, clock: Callable[[], float]) -> None:
        self._config, self._clock = config, clock
        self._next, self._since = config.every_steps, clock()

    def now(self, made: int) -> bool:
        """Whether an evaluation is due when the run has made so many steps; from then on the next one is waited for.
        What was missed meanwhile is not made up for."""
        every, seconds = self._config.every_steps, self._config.every_seconds
        late = seconds is not None and self._clock() - self._since >= seconds
        far = self._next is not None and made >= self._next
        if late or far:
            self._since = self._clock()
            if every is not None:
                self._next = (made // every + 1) * every
        return late or far
