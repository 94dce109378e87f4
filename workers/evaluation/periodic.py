"""Evaluations of a run that goes on, as they fall due.

In flows: how far the run is; newer weights, when they are asked for. Out flows: lines of `evaluations.jsonl`; the means
of the last evaluation, as measurements.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EvaluationConfig, Run
from protocol.weights.manifest import NOTHING, Version
from workers.evaluation.evaluation import Evaluation
from workers.evaluation.policy_sync import EvaluationSchedule, SyncedPolicy
from workers.evaluation.scores import Score, append
from workers.planning.policy_plan import PolicyPlan

log = logging.getLogger(__name__)

Adopt = Callable[[str, NDArray[np.uint8], Version], Version | None]
"""Fills the weights [nbytes] of a policy if there are newer ones than a version, and tells theirs."""


class PeriodicEvaluation:
    """Of `run`, which writes to `folder`. `on_turn` is called once a turn of an evaluation and may raise."""

    def __init__(
        self,
        run: Run,
        config: EvaluationConfig,
        plans: Mapping[str, PolicyPlan],
        folder: Path,
        adopt: Adopt,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self.live = {name: SyncedPolicy(plan) for name, plan in plans.items()}
        self._evaluator = Evaluation(run, config.episodes, config.seed)
        self._due = EvaluationSchedule(config, time.monotonic)
        self._folder, self._adopt, self._on_turn = folder, adopt, on_turn
        self._evaluated: dict[str, Version] = {}
        """Of which weights the last evaluation was."""
        self.measured: dict[str, float] = {}
        """POLICY.evaluation/… -> mean return, as of the last evaluation."""

    def run_if_due(self, made: int, last: bool = False) -> dict[str, float]:
        """Evaluates if that is due after `made` steps, or for the `last` time if there are weights that were not
        evaluated; what was measured last."""
        if not self._ready:
            self.sync()
        if self._ready and (last or self._due.now(made)):
            self.sync()
            if not last or self._versions != self._evaluated:
                self._evaluate(made)
        return self.measured

    def sync(self) -> None:
        """Newer weights, if there are any. They change at no other time."""
        for name, live in self.live.items():
            live.performer.adopt(partial(self._adopt, name))

    def close(self) -> None:
        """Closes the environments."""
        self._evaluator.close()

    @property
    def _versions(self) -> dict[str, Version]:
        return {name: live.performer.version for name, live in self.live.items()}

    @property
    def _ready(self) -> bool:
        """Whether weights of every policy have come."""
        return all(version > NOTHING for version in self._versions.values())

    def _evaluate(self, made: int) -> None:
        began = time.monotonic()
        scores = self._evaluator.play(self.live, self._on_turn)
        append(self._folder, [self._line(one, made) for one in scores])
        several = len({one.environment for one in scores}) > 1
        self.measured = {_measurement(one, several): one.mean for one in scores}
        self._evaluated = self._versions
        log.info("event=evaluated agent_steps=%d seconds=%.1f", made, time.monotonic() - began)

    def _line(self, one: Score, made: int) -> dict[str, Any]:
        live = self.live.get(one.policy)
        version = None if live is None else live.performer.version.version
        return one.line(time=time.time(), source="run", agent_steps=made, version=version)


def _measurement(one: Score, several: bool) -> str:
    """What stands behind the policy's name is one word for the coordinator; `several` environments are told apart."""
    return f"{one.policy}.evaluation/{one.environment.replace('.', '_') if several else 'return'}"
