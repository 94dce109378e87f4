"""The evaluation of a run that goes on: a worker that acts as an actor does, on its own schedule, and sends no data.

    join -> ( wait until due -> sync -> play whole episodes -> write down ) until the run drains -> once more -> leave

In flows: weights of every policy, taken only at `sync`. Out flows: what `PeriodicEvaluation` writes and measures. It
runs at a low priority (nice): where no core is free, training has it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.control.heartbeat import Report
from protocol.errors import ConfigurationError
from protocol.messages.core import Welcome
from protocol.spaces import World, parse_world
from protocol.weights.manifest import Version
from protocol.weights.publisher import WeightSubscriber
from workers import freeze_startup_objects
from workers.evaluation.periodic import PeriodicEvaluation
from workers.planning.policy_plan import plan_policies
from workers.policies.build import published_weights
from workers.policies.checkpoint import list_steps
from workers.policies.export.from_checkpoint import find_checkpoint
from workers.runtime import torch_setup
from workers.runtime.last_words import run_to_end
from workers.runtime.process import StopRequested, WorkerProcess, run_dir_of, worker_command

__all__ = ["EvaluatorWorker", "main"]

log = logging.getLogger(__name__)

_NICE = 10
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 5.0
"""For newer weights that are known of and have to be asked for."""


class EvaluatorWorker:
    """One evaluation process, which writes to the run's `folder`."""

    def __init__(self, life: WorkerProcess, run: Run, world: World, folder: Path) -> None:
        assert run.evaluation is not None
        self._life, self._folder, plans = life, folder, plan_policies(run, world)
        self._learners_left = False
        self._watch = PeriodicEvaluation(run, run.evaluation, plans, folder, self._adopt, self._check)
        life.vitals.bind(lambda: "evaluating", None)
        self._subscribers = {
            name: WeightSubscriber(life.context, name, live.performer.manifest, run.transport)
            for name, live in self._watch.live.items()
        }

    def run(self) -> None:
        """Evaluates whenever it is due, and the last weights once."""
        client = self._life.client
        assert client is not None
        self._life.report(lambda: Report(state="evaluating", metrics=dict(self._watch.measured)))
        while client.command != "drain":
            self._rest()
            self._watch.run_if_due(self._told("made"))
        if self._told("complete"):
            while client.status is not None and client.status.routes:  # who has left has published its last weights
                self._rest()
            self._learners_left = True
            try:
                self._watch.run_if_due(self._told("made"), last=True)
            except StopRequested:
                log.warning("event=not_evaluated reason=the run ended before the last weights had played all episodes")
                raise

    def close(self) -> None:
        """Closes environments and sockets."""
        for subscriber in self._subscribers.values():
            subscriber.close()
        self._life.close_world(self._watch.close)

    def _adopt(self, policy: str, out: NDArray[np.uint8], have: Version) -> Version | None:
        subscriber = self._subscribers[policy]
        version = subscriber.adopt(out, have)
        if self._learners_left and list_steps(self._folder / "checkpoints" / policy):
            return self._saved(policy, out, version or have) or version
        if version is None and subscriber.newest > have:
            version = subscriber.wait(out, _ANSWER_SECONDS, self._life.check, have)
        return version

    def _saved(self, policy: str, out: NDArray[np.uint8], have: Version) -> Version | None:
        """From the last checkpoint: a learner that has left took its memory with it, and of a short run at once."""
        _, manifest, saved = find_checkpoint(self._folder, policy, "newest")
        version = Version(manifest.provenance.incarnation, manifest.provenance.version)
        if version <= have:
            return None
        out[:] = published_weights(saved).bytes_view()
        return version

    def _told(self, key: str) -> int:
        """What the coordinator told last of the run."""
        client = self._life.client
        return int(client.status.view.get(key, 0)) if client is not None and client.status is not None else 0

    def _check(self) -> None:
        """In each turn of an evaluation, and between two; Stop when the run is over."""
        self._life.vitals.tick()
        self._life.check()

    def _rest(self) -> None:
        """Waits for news of the run, and follows learners that move."""
        client = self._life.client
        assert client is not None
        self._check()
        client.changed.wait(_LOOK_SECONDS)
        client.changed.clear()
        for route in client.status.routes if client.status is not None else ():
            if route.policy in self._subscribers:
                self._subscribers[route.policy].route(route)


def folder_of(welcome: Welcome) -> Path:
    """The run's folder; ConfigurationError where it cannot be seen."""
    folder = run_dir_of(welcome)
    if folder is None:
        raise ConfigurationError("run_folder_not_visible_to_evaluation", file=welcome.run_dir)
    return folder


def main(life: WorkerProcess) -> None:
    """Joins, and evaluates until the run ends."""
    torch_setup.configure_torch()
    os.nice(_NICE)
    welcome, run = life.join("evaluator")
    evaluation = EvaluatorWorker(life, run.anchored(), parse_world(welcome.world), folder_of(welcome))
    try:
        evaluation.run()
    finally:
        evaluation.close()


command = worker_command("evaluator", main)

if __name__ == "__main__":
    freeze_startup_objects()
    run_to_end(command)
