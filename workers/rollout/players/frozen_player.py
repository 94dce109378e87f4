"""A frozen policy as a player: it remembers and stacks what it must, each stream at its own pace.

In flows: an agent's turns, and ends told between them. Out flow: actions, rows of its place.

Legend: `E` copies, `C` places of an agent that stands for many (1 otherwise), `n` streams of these E * C that act.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.interface import Interface
from workers.rollout.observation_encoder import ObservationEncoder
from workers.rollout.segment_block import Index
from workers.rollout.stream_state import RecurrentState


class InferencePolicy(Protocol):
    """Weights that do not change while an episode is played: an `ExportedPolicy`, or a policy that learns elsewhere."""

    @property
    def interface(self) -> Interface:
        """What it sees and does."""

    @property
    def frames(self) -> int:
        """F."""

    @property
    def state(self) -> int:
        """S; 0 where it remembers nothing."""

    @property
    def shared(self) -> bool:
        """Whether it sees something that all agents see."""

    def infer(
        self, seen: NDArray[Any], noise: Noise | None, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray[Any]]:
        """What the network chooses on `seen` [n, *shape] (or [n, F, *shape]), of values `legal` [n, C], in `state`
        [n, S]; the likeliest without `noise`."""


@dataclass(slots=True)
class _Scene:
    """What all agents see, as `ObservationEncoder` asks for it."""

    newest: NDArray[Any] = field(default_factory=lambda: np.empty(0))


class FrozenPlayer:
    """Plays one agent in `copies` copies: the likeliest action of `policy`, or drawn with `noise`.

    It is a `Player`. Where ends of episodes come as outcomes (`Turn.outcomes`), it has to be told of its own; where a
    world has something that all agents see (`Turn.common`), of that, before it acts.
    """

    def __init__(
        self, policy: InferencePolicy, copies: int, noise: np.random.Generator | None = None, many: int = 1
    ) -> None:
        self.policy, self._noise = policy, noise
        streams = copies * many
        self._scene = _Scene() if policy.shared else None
        self._sight = ObservationEncoder(
            policy.interface, streams, policy.frames, self._scene, np.arange(streams) // many
        )
        self._memory = RecurrentState(streams, policy.state) if policy.state else None
        self._everyone: NDArray[np.int64] = np.arange(streams)

    def __call__(self, present: AgentTimeStep) -> NDArray[Any]:
        """n actions."""
        streams: Index = slice(None) if present.copies is None else present.copies
        self._forget(streams, present.terminated | present.truncated)
        seen = self._sight.encode(streams, present.observation)
        legal = None if present.action_mask is None else self._sight.legal(present.action_mask)
        state = None if self._memory is None else self._memory.of(streams)
        acted = self.policy.infer(seen, self._noise, legal, state)
        if self._memory is not None:
            self._memory.keep(streams, acted["state"])
        _, actions = self.policy.interface.action_encoding.decode(acted["action"], acted.get("amount"))
        return actions

    def add_outcome(self, outcome: AgentOutcome) -> None:
        """Ends that came between its turns."""
        self._forget(outcome.copies, outcome.terminated | outcome.truncated)

    def set_shared_observation(self, common: NDArray[Any]) -> None:
        """What all agents see in this turn: [E, *shape]."""
        if self._scene is not None:
            self._scene.newest = common

    def _forget(self, streams: Index, ended: NDArray[np.bool_]) -> None:
        if ended.any():
            which = self._everyone[streams][ended]
            self._sight.reset_streams(which)
            if self._memory is not None:
                self._memory.reset(which)
