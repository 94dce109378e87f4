"""An exported policy that acts by itself: no run, no learner, no checkpoint; torch is all it needs.

In flows: columns of what it sees (those of `inputs`). Out flows: actions in the world's units, and its next state.

Legend: `n` rows, `F` stacked frames, `S` numbers of a state, `C` values of all heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from workers.policies.backends.numpy_actor import numpy_actor
from workers.policies.build import Policy, state_size
from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.export import safetensors
from workers.policies.export.export_manifest import ExportManifest
from workers.policies.export.module import NEXT_STATE, STATE
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.tensors.flat_weights import flatten_


class ExportedPolicy:
    """The policy of a file. Its weights never change."""

    def __init__(self, manifest: ExportManifest, policy: Policy) -> None:
        self.manifest, self.interface, self._policy = manifest, manifest.interface, policy
        self.inputs = {port.name: port for port in manifest.inputs}
        self.state = state_size(policy)
        """S; 0 where it remembers nothing."""
        self.frames, self.shared = manifest.frames, manifest.common is not None
        flatten_(policy.eval())
        self._host = numpy_actor(policy)
        """The same without torch, where that can be."""
        self._undrawn = np.random.default_rng(0)
        """Stands for noise where nothing is drawn."""

    @classmethod
    def load(cls, path: Path | str, code: Set[str] = frozenset()) -> Self:
        """The policy that `rookery export` put there; ConfigurationError for anything else, and for code of the user's
        that is not among `code`."""
        return cls(*safetensors.load_policy(Path(path), code))

    def act(self, columns: Mapping[str, NDArray], noise: Noise | None = None) -> dict[str, NDArray]:
        """Actions for `columns`, one of n rows for each of `inputs`: the likeliest, or drawn with `noise`.

        Returns a column for each leaf of the action, in the world's units, and `next_state` [n, S] where the policy
        remembers (its `state` is zeros at the start of an episode). EnvironmentFault for a column that is missing, of
        another shape or dtype, or none of its inputs, evaluation-only ones among them.
        """
        rows = self._check(columns)
        stack = (self.frames,) if self.frames > 1 else ()
        seen = self.interface.observation_encoding.encode(columns.__getitem__, (rows, *stack))
        legal = (
            self.interface.action_encoding.legal(columns.__getitem__, (rows,))
            if self.interface.action_encoding.masked
            else None
        )
        acted = self.infer(seen, noise, legal, columns.get(STATE))
        _, done = self.interface.action_encoding.decode(acted["action"], acted.get("amount"))
        found = dict(self.interface.place.parts("action", done))
        return {**found, NEXT_STATE: acted["state"]} if self.state else found

    def infer(
        self, seen: NDArray, noise: Noise | None, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """What the network chose on `seen` [n, *shape] (or [n, F, *shape]), of values `legal` [n, C], in `state`
        [n, S]: as `ActingPolicy.act` does."""
        greedy, source = noise is None, self._undrawn if noise is None else noise
        if self._host is not None:
            return self._host.act(seen, source, greedy, legal, state)
        if self.frames == 1 and not isinstance(self._policy, ActorCritic | CentralActorCritic):
            seen = seen[:, None]
        return self._policy.act(torch.from_numpy(seen), source, greedy, legal, state)

    def _check(self, columns: Mapping[str, NDArray]) -> int:
        """The number of rows."""
        name = self.manifest.policy
        for column in columns:
            if column in self.manifest.withheld:
                raise EnvironmentFault("input_withheld_from_policy", policy=name, field=column)
            if column not in self.inputs:
                raise EnvironmentFault("unknown_policy_input", policy=name, field=column, choices=list(self.inputs))
        counts = set()
        for port in self.inputs.values():
            array = columns.get(port.name)
            if array is None:
                raise EnvironmentFault("policy_input_missing", policy=name, field=port.name)
            if array.dtype != np.dtype(port.dtype) or array.shape[1:] != port.shape or not array.ndim:
                raise EnvironmentFault(
                    "policy_input_has_wrong_form",
                    policy=name,
                    field=port.name,
                    dtype=array.dtype,
                    shape=array.shape,
                    expected_dtype=np.dtype(port.dtype),
                    expected_shape=port.shape,
                )
            counts.add(len(array))
        if len(counts) != 1:
            raise EnvironmentFault("input_lengths_differ", policy=name)
        return counts.pop()
