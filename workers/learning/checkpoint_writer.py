"""The checkpoints of one policy: when one is due, what is in it, and the thread that writes it, so that training does
not wait for a disk.

In flow: the policy, its update and its replay, as they are. Out flows: a folder for each moment; counters of what was
written and what was not; and, at a restart, the same parts as they were.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from protocol.config.off_policy import Replayed
from protocol.config.run import Run
from protocol.errors import ConfigurationError, disk_fault
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from workers.algorithms.build import Update
from workers.learning.buffers.replay_buffer import ReplayBuffer
from workers.metrics.hooks.calls import Call
from workers.metrics.hooks.hook import CheckpointEvent
from workers.planning.policy_plan import TrainingPlan
from workers.policies import checkpoint
from workers.policies.build import Policy
from workers.policies.checkpoint import Checkpoint, CheckpointManifest
from workers.policies.networks.rnd_networks import RNDNetworks
from workers.policies.tensors.flat_weights import flatten_

log = logging.getLogger(__name__)

_PAUSE = 20
"""Times as long as a checkpoint was written, from one to the next that is made because it is better: what a large one
costs is bounded, and a small one is on disk within a second."""


class Trained(NamedTuple):
    """What is kept of a member."""

    policy: Policy | RNDNetworks
    update: Update
    replay: ReplayBuffer | None


class CheckpointWriter:
    """Of a policy, whose part of the run's agent steps is `share`, under the run's `folder`. One that cannot be written
    is counted and said, and the run goes on."""

    def __init__(
        self, plan: TrainingPlan, run: Run, folder: Path, parts: Trained, counters: Counters, share: float = 1.0
    ) -> None:
        self._plan, self._run, self._folder = plan, run, folder / "checkpoints" / plan.name
        self._parts = parts
        self._counters = counters
        self._taken_at = -math.inf  # the first update is saved at once, so that a restart finds it
        self._every = None if run.checkpoint_steps is None else max(1.0, run.checkpoint_steps * share)
        self._rows_at = 0
        self._best, self._seconds, self._step = -math.inf, 0.0, -1
        self.evaluated: float | None = None
        """What an evaluation found that no checkpoint has said yet."""
        self.calls: Sequence[Call] = ()
        """Who is told of each, in the thread that has written it."""
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def due(self, rows: int, mean_return: float | None = None) -> bool:
        """Whether it is time for one, by the clock, by the `rows` that all incarnations received, or by a `mean_return`
        or an evaluation better than those before, and the last one is on disk."""
        passed = time.monotonic() - self._taken_at
        late = passed >= self._run.checkpoint_interval
        grown = self._every is not None and rows // self._every > self._rows_at // self._every
        better = mean_return is not None and mean_return > self._best and passed >= _PAUSE * self._seconds
        better |= self.evaluated is not None and self.evaluated > self._best
        return (late or grown or better) and not self._writing

    @property
    def behind(self) -> bool:
        """Whether something was learned that is in no checkpoint, and the last one is on disk."""
        return self._parts.update.train_steps != self._step and not self._writing

    def expire(self) -> None:
        """The policy is another one now: the next checkpoint is due at once."""
        self._taken_at, self._step, self.evaluated = -math.inf, -1, None

    def write(
        self, version: Version, rows: int, mean_return: float | None, seconds: float = 0.0, replaced: int = 0
    ) -> None:
        """Takes all of this moment into memory and begins to write it, once the last one is on disk; where that takes
        more than `seconds`, it is given up."""
        self._taken_at, self._rows_at = time.monotonic(), rows
        if not self.wait(seconds):
            self._failed(f"the one before took longer than {seconds:g} s; look at the disk")
            return
        earned = max((one for one in (mean_return, self.evaluated) if one is not None), default=None)
        found, self.evaluated = self._snapshot(version, rows, earned, replaced), None
        self._step = found.manifest.step
        self._best = max(self._best, -math.inf if earned is None else earned)
        name = f"checkpoint-{self._plan.name}"
        self._thread = threading.Thread(target=self._write, args=(found,), name=name, daemon=True)
        self._thread.start()

    def load(self, rows: bool = True) -> CheckpointManifest | None:
        """Puts everything back to where the newest checkpoint was, and returns what it says of itself; None where there
        is none, ConfigurationError in one sentence for one that does not fit. Without `rows` replay stays as it is, as
        it must where anything was admitted to it."""
        policy, update, replay = self._parts
        found = checkpoint.load_newest(self._folder, flatten_(policy).hash)
        if found is None:
            return None
        self._rows_at = found.manifest.rows
        path = self._folder / str(found.manifest.step)
        theirs = found.manifest.config.get("algorithm", {}).get("entry") or "null"
        if theirs != (ours := getattr(self._plan.config.algorithm, "entry", None) or "null"):
            raise ConfigurationError("checkpoint_of_other_algorithm", file=path, value=theirs, expected=ours)
        try:
            policy.load_state_dict(found.weights)
            update.load_state(found.optimizer)
        except (KeyError, TypeError, ValueError, RuntimeError) as fault:
            raise ConfigurationError(
                "checkpoint_does_not_fit_policy", file=path, reason=" ".join(str(fault).split())
            ) from None
        if rows and replay is not None and found.replay:
            try:
                replay.load_state(found.replay)
            except ConfigurationError as fault:
                raise fault.within(f"checkpoint {path}", file=path) from None
        return found.manifest

    def wait(self, seconds: float) -> bool:
        """Waits until nothing is being written, `seconds` at most; whether that is so. What the thread died of, unless
        it was the disk, is raised here."""
        started = time.monotonic()
        if self._thread is not None:
            self._thread.join(seconds)
            self._counters.add(f"waits.checkpoint.{self._plan.name}", time.monotonic() - started)
        if self._writing:
            return False
        self._thread = None
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        return True

    def close(self, seconds: float) -> None:
        """The last one is on disk, or was given `seconds`."""
        if not self.wait(seconds):
            log.warning("event=checkpoint_unfinished policy=%s seconds=%g", self._plan.name, seconds)

    @property
    def _writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _snapshot(self, version: Version, rows: int, mean_return: float | None, replaced: int) -> Checkpoint:
        policy, update, replay = self._parts
        place, config = self._plan.interface.place, self._plan.config
        manifest = CheckpointManifest(
            step=update.train_steps,
            policy=self._plan.name,
            version=version.version,
            incarnation=version.incarnation,
            train_steps=update.train_steps,
            rows=rows,
            weights_hash=flatten_(policy).hash,
            mean_return=mean_return,
            replaced=replaced,
            agent=place.agent.model_dump(),
            common=next((leaf.space.model_dump() for leaf in place.leaves if leaf.common), None),
            config=config.model_dump(mode="json"),
        )
        weights = checkpoint.to_cpu(policy.state_dict())
        if replay is None:
            return Checkpoint(manifest, weights, checkpoint.to_cpu(update.state()))
        rows = config.algorithm.checkpoint_replay if isinstance(config.algorithm, Replayed) else 0
        return Checkpoint(manifest, weights, checkpoint.to_cpu(update.state()), replay.state(rows))

    def _write(self, found: Checkpoint) -> None:
        started = time.monotonic()
        try:
            path = checkpoint.save(self._folder, found, self._run.keep_checkpoints, self._run.keep_checkpoint_every)
        except (OSError, SafetensorError) as fault:
            self._failed(str(disk_fault(fault) or f"{fault}; free some room or give another --run-dir"))
        except BaseException as fault:  # the thread that trains raises it
            self._fault = fault
        else:
            self._counters.add(f"checkpoints.{self._plan.name}")
            self._seconds = time.monotonic() - started
            log.info("event=checkpoint policy=%s path=%s seconds=%.2f", self._plan.name, path, self._seconds)
            for call in self.calls:
                call(CheckpointEvent(self._plan.name, found.manifest.version, found.manifest.step, path))

    def _failed(self, why: str) -> None:
        self._counters.add(f"checkpoints_failed.{self._plan.name}")
        log.error("event=checkpoint_failed policy=%s error=%s", self._plan.name, " ".join(why.split()))
