"""A policy that acts: weights adopted whole between two turns, never half-written.

Two modules take turns: new weights are copied into the spare one, checked, and only then does it take over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import from_numpy

from protocol.config.run import PolicyConfig, Replayed
from protocol.weights.manifest import Manifest, Version, pack
from workers.policies.backends.cuda_actor import CudaActor
from workers.policies.backends.numpy_actor import numpy_actor
from workers.policies.build import Policy, build, published_weights, state_size
from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic


class ActingPolicy:
    """One policy on the actor. `seed` only matters until the first weights are adopted. On another `device` than this
    machine's processor only policies with a value act, without outputs that an algorithm of the user's own declares."""

    def __init__(
        self, interface: Interface, config: PolicyConfig, seed: int = 0, device: torch.device | None = None
    ) -> None:
        self.interface, self._config = interface, config
        self._modules = [build(interface, config, seed).eval() for _ in range(2)]
        self._flat = [published_weights(module) for module in self._modules]
        self._hosts = [numpy_actor(module) for module in self._modules]
        """The same without torch, but for encoders, where that can be."""
        first = self._modules[0]
        elsewhere = device is not None and isinstance(first, ActorCritic) and first.declared is None
        self._elsewhere = CudaActor(first, device) if elsewhere else None  # type: ignore[arg-type] # as is asked
        """The same on another device."""
        self._live = 0
        self._single_frame = isinstance(config.algorithm, Replayed) and config.algorithm.frames == 1
        self.state = state_size(first)
        """Numbers that it remembers of each stream."""
        self.version = Version(0, 0)
        self.packed_version = np.uint64(0)
        self.adopted = 0

    @property
    def module(self) -> Policy:
        """The policy that acts now."""
        return self._modules[self._live]

    @property
    def on_device(self) -> bool:
        """Whether it acts on another device."""
        return self._elsewhere is not None

    @property
    def numpy_backend(self) -> bool:
        """Whether it acts without torch, but for its encoder."""
        return self._hosts[0] is not None

    @property
    def stacking_key(self) -> str:
        """What performers must have in common to act as one: what they see and choose, and their network."""
        algorithm, interface = self._config.algorithm, self.interface
        form = algorithm.name, getattr(algorithm, "dueling", None), algorithm.frames
        ends = (
            interface.observation_encoding.shape,
            interface.action_encoding.head_sizes,
            interface.action_encoding.continuous,
            interface.action_encoding.masked,
        )
        return f"{self.manifest.hash}|{ends}|{form}|{self._config.network.model_dump_json()}"

    def seen(self, observation: NDArray) -> NDArray:
        """`observation` with its one frame as an axis, where the policy stacks frames."""
        return observation[:, None] if self._single_frame else observation

    @property
    def manifest(self) -> Manifest:
        """Names, dtypes, shapes and places of the weights."""
        return self._flat[0].manifest

    @property
    def spare(self) -> NDArray[np.uint8]:
        """Memory of the module that does not act now: [nbytes]."""
        return self._flat[1 - self._live].bytes_view()

    def adopt(self, copy: Callable[[NDArray[np.uint8], Version], Version | None]) -> bool:
        """The spare module takes over with newer weights, if there are any: `copy` fills its memory with ones that are
        newer than a version, and tells theirs."""
        version = copy(self.spare, self.version)
        if version is None:
            return False
        self._live = 1 - self._live
        self.version = version
        self.packed_version = np.uint64(pack(version))
        self.adopted += 1
        module = self.module
        if self._elsewhere is not None and isinstance(module, ActorCritic):
            self._elsewhere.adopt(module)
        return True

    def act(
        self, observation: NDArray, noise: Noise, greedy: bool = False, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """What the policy does on `observation` [n, *shape] (or [n, F, *shape]) and further row fields, [n, ...] each;
        `legal` [n, C]: the values that it may choose, of all heads; `state` [n, S]: what it remembers, if it does, and
        then the `state` after that is among what is returned."""
        observation = self.seen(observation)
        if self._elsewhere is not None:
            return self._elsewhere.act(observation, noise, greedy, legal, state)
        host = self._hosts[self._live]
        if host is not None:
            return host.act(observation, noise, greedy, legal, state)
        return self.module.act(from_numpy(observation), noise, greedy, legal, state)


class InferenceRequest(NamedTuple):
    """What one performer is to see in a turn, and where its random numbers come from."""

    performer: ActingPolicy
    observation: NDArray
    """[n, *shape], or [n, F, *shape]"""
    noise: Noise
    legal: Legal
    """[n, C]: which values of the policy's heads may be chosen; None where all may be, always."""
    state: Remembered
    """[n, S]: what the policy remembers; None where it has no memory."""

    def act(self) -> dict[str, NDArray]:
        """Alone."""
        return self.performer.act(self.observation, self.noise, legal=self.legal, state=self.state)
