"""What a user's hook is told, and what it may do. No torch.

In flow: events, one frozen class each. Out flow: whatever the hook does with them; through `self.run` the end of the
run, or another learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from protocol.errors import ConfigurationError
from protocol.messages.core import Role

EMPTY: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class EpisodeEvent:
    """An episode of `agent` has ended, after `length` of its own actions. `info`: what the world tells of it by name;
    where several episodes of one agent end in the same turn, their mean."""

    policy: str
    agent: str
    episode_return: float
    length: int
    terminated: bool
    info: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PolicyEvent:
    """A policy begins to learn, or has ended, in this learner; where it stands then."""

    policy: str
    version: int
    train_steps: int


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """A batch of so many rows was taken and found sound, before the update that is made of it."""

    policy: str
    train_steps: int
    rows: int


@dataclass(frozen=True, slots=True)
class UpdateEvent:
    """An update was made: `metrics` is what it says of itself, `progress` in [0, 1] how much of the schedules is over,
    `mean_return` that of the newest hundred episodes or so, None while there are too few."""

    policy: str
    version: int
    train_steps: int
    progress: float
    mean_return: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PublishEvent:
    """Actors may have this version now."""

    policy: str
    version: int
    train_steps: int


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    """A checkpoint is on disk at `path`."""

    policy: str
    version: int
    train_steps: int
    path: Path


@dataclass(frozen=True, slots=True)
class RunEvent:
    """The run begins, for the `first` time or again; or has ended, `complete` or not, with its `summary`."""

    number: int
    folder: Path
    first: bool = True
    complete: bool | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A worker has joined, or is not there any more; `in_order` if it had said farewell."""

    number: int
    name: str
    role: str
    incarnation: int
    host: str
    in_order: bool | None = None


@dataclass(frozen=True, slots=True)
class EvaluationEvent:
    """A policy was evaluated in an environment; `told` is the line of `evaluations.jsonl`."""

    number: int
    policy: str
    environment: str
    agent_steps: int
    version: int | None
    mean: float
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FindingEvent:
    """Something was found that is wrong, or may be, as `rookery doctor` says it."""

    number: int
    policy: str
    layer: str
    level: str
    finding: str
    says: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CommandEvent:
    """Somebody has told the run something; with `set`, which `key` has which `value` from now on, with `freeze` and
    `thaw` in `key` of which policy, with `assign` which agent was given to which policy,
    with `worlds` which member of a collection has which share."""

    number: int
    command: Literal["pause", "resume", "checkpoint", "stop", "set", "freeze", "thaw", "assign", "worlds"]
    key: str = ""
    value: Any = None


@dataclass(slots=True)
class HookRun:
    """What a hook may do: `self.run`, once it is made. `folder` is the run's, None where it cannot be seen."""

    worker: str
    folder: Path | None
    rates: dict[str, Callable[[float], None]] = field(default_factory=dict)
    """Of policies that learn here by themselves."""
    ending: bool = False
    """Whether the run is to end."""

    def stop(self) -> None:
        """The run ends in order, as one that has reached its end."""
        self.ending = True

    def set_learning_rate(self, policy: str, rate: float) -> None:
        """Of the next updates of `policy`, until another is set; with 0 its weights stay as they are. In the process
        that learns it: ConfigurationError anywhere else, and for a policy of several ranks."""
        if policy not in self.rates:
            raise ConfigurationError("hook_policy_not_here", policy=policy, peer=self.worker)
        if not 0 <= rate < float("inf"):
            raise ConfigurationError("hook_rate_invalid", policy=policy, value=rate)
        self.rates[policy](rate)


class Hook:
    """The base of a hook. Only methods that it has are called, each in the process where that happens: of episodes in
    actors, of policies in learners, of the run in a process for hooks. Every process has an instance of its own."""

    run: HookRun

    def on_episode_end(self, event: EpisodeEvent) -> None:
        """In an actor."""

    def on_policy_start(self, event: PolicyEvent) -> None:
        """In a learner, as the others up to `on_policy_end`."""

    def on_batch(self, event: BatchEvent) -> None:
        """Before an update."""

    def on_update(self, event: UpdateEvent) -> None:
        """After an update."""

    def on_publish(self, event: PublishEvent) -> None:
        """After a publication."""

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """When a checkpoint is on disk."""

    def on_policy_end(self, event: PolicyEvent) -> None:
        """After the last publication and checkpoint."""

    def on_run_start(self, event: RunEvent) -> None:
        """In the process for hooks, as all that follow; the first of its events."""

    def on_run_end(self, event: RunEvent) -> None:
        """The last of its events."""

    def on_worker_start(self, event: WorkerEvent) -> None:
        """Of actors, learners, relays and evaluators."""

    def on_worker_end(self, event: WorkerEvent) -> None:
        """The same."""

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Once for each policy and environment."""

    def on_finding(self, event: FindingEvent) -> None:
        """Once for each, when it is found first."""

    def on_command(self, event: CommandEvent) -> None:
        """From the run's page, a terminal, or a run that goes on with other settings."""


OF_RUN = ("run_start", "run_end", "worker_start", "worker_end", "evaluation", "finding", "command")
"""The events of the process for hooks."""
EVENTS = tuple(name.removeprefix("on_") for name in vars(Hook) if name.startswith("on_"))
CALLED_IN: Mapping[Role, Sequence[str]] = {
    "actor": ("episode_end",),
    "learner": [name for name in EVENTS if name not in ("episode_end", *OF_RUN)],
    "supervisor": OF_RUN,
}
"""The events of each process, by the role that it joins as."""
