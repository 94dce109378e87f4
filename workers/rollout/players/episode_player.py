"""A policy of a run as a function: what one agent sees goes in, what it does comes out, both as its world has them.

In flows: a run's folder; observations, one after the other. Out flow: actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import space_of, unflatten
from protocol.spaces.row_format import field_of
from workers.environments.base import AgentTimeStep
from workers.policies.export.from_checkpoint import find_checkpoint, saved_policies
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.players.frozen_player import FrozenPlayer


class EpisodePlayer:
    """Plays one agent by the policy called `policy` of the run in `folder`, where None is enough if it has one, as of
    the `checkpoint` that is named: `newest`, `best` or a train step.

        player = EpisodePlayer("runs/first", "hunter")
        action = player(observation)
        player.reset()

    It does what is likeliest, or draws where it is given a `seed`. What it remembers and the frames that it stacks are
    of one episode: `reset` begins another. ConfigurationError for a run, policy or checkpoint that there is not.
    """

    def __init__(
        self, folder: Path | str, policy: str | None = None, checkpoint: str | int = "newest", seed: int | None = None
    ) -> None:
        known = saved_policies(folder := Path(folder))
        if not known:
            raise ConfigurationError("run_without_checkpoint", file=folder)
        if policy is None and len(known) > 1:
            raise ConfigurationError("policy_not_named", file=folder, choices=known, key="policy")
        _, manifest, network = find_checkpoint(folder, policy or known[0], str(checkpoint))
        self._policy = ExportedPolicy(manifest, network)
        self._place, self._common = self._policy.interface.place, manifest.common
        self._player = FrozenPlayer(self._policy, 1, None if seed is None else np.random.default_rng(seed))
        self._begins = True

    def reset(self) -> None:
        """The next observation is the first of an episode."""
        self._begins = True

    def __call__(self, observation: Any, action_mask: Any = None, common: Any = None) -> Any:
        """An action of the agent's space for an `observation` of its, with the mask of what is legal, and with what all
        agents see, where its world has these. EnvironmentFault for what is not of their spaces, or missing."""
        place = self._place
        seen, rows = place.agent.see(observation), place.observed.zeros(1)
        for leaf, part in place.observed.parts(rows):
            part[0] = seen[leaf.name]
        if self._common is not None:
            self._player.set_shared_observation(self._common.encode(self._needed("common", common), "common")[None])
        begins, cut = np.array([self._begins]), np.zeros(1, np.bool_)
        self._begins = False
        legal = self._legal(action_mask)
        done = self._player(AgentTimeStep(0, rows, np.zeros(1, np.float32), begins, cut, action_mask=legal))
        parts = {name: column[0] for name, column in place.parts("action", done).items()}
        return unflatten(space_of(place.agent.action), parts, "action")

    def _legal(self, given: Any) -> NDArray[Any] | None:
        """One row of masks: an array, or of nested choices one by each of their dotted names."""
        if self._place.masked is None:
            return None
        rows, given = self._place.masked.zeros(1), self._needed("action_mask", given)
        for leaf, part in self._place.masked.parts(rows):
            told = given.get(field_of(leaf)) if isinstance(given, Mapping) else given
            part[0] = leaf.space.encode(np.asarray(self._needed(leaf.name, told)).astype(np.bool_), leaf.name)
        return rows

    def _needed(self, field: str, given: Any) -> Any:
        if given is None:
            raise EnvironmentFault("policy_input_missing", policy=self._policy.manifest.policy, field=field)
        return given
