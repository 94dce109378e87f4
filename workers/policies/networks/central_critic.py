"""The policy of PPO with a central critic: an actor of its own, and beside it a value that sees more than it does.

In flows: observations, and for learning what only learners see. Out flows: actions with their log-probabilities
(acting), or outputs and normalised values with gradients (learning). A central critic for decentralised actors is that
of MAPPO (Yu et al. 2022); seen from one agent it is the asymmetric actor-critic of Pinto et al. (2017).

The critic remembers nothing, also where the actor does: what it is told besides should leave nothing to remember.

Legend: `B` rows acted on, `N` rows learnt from, `I` inputs of the actor, `P` numbers that only learners see, `A`
outputs, `C` values of all heads, `S` numbers of a state (recurrent.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workers.policies.distributions import Heads, Legal, Noise, Remembered
from workers.policies.networks.layers import Perceptron, RowEncoder, flatten_inputs, orthogonal_layer
from workers.policies.networks.normalization import PopArtValue, RunningMoments, return_moments
from workers.policies.networks.recurrent import Core, recalled
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective
from workers.policies.tensors.kernels import Activation, to_float32


class _Actor(nn.Module):
    """All that acting needs, its normaliser included."""

    def __init__(
        self,
        inputs: int,
        heads: Heads,
        hidden: Sequence[int],
        activation: Activation,
        normalize: bool,
        core: Core | None,
        encoder: RowEncoder | None,
    ) -> None:
        super().__init__()
        self.core, self.encoder = core, encoder
        self.perceptron = Perceptron(inputs + (core.size if core is not None else 0), hidden, activation)
        self.head = orthogonal_layer(nn.Linear(self.perceptron.outputs, heads.outputs), 0.01)
        # the same everywhere, and 1 at first: half the range of a bounded action
        self.log_std = nn.Parameter(torch.zeros(heads.continuous)) if heads.continuous else None
        self.observations = RunningMoments(inputs) if normalize and encoder is None else None

    def forward(self, features: Tensor) -> Tensor:
        """[N, I], or [N, I + U] with what is remembered -> outputs [A, N]."""
        return to_float32(self.head(self.perceptron(features))).T


class _Critic(nn.Module):
    """What learning needs besides."""

    def __init__(self, inputs: int, hidden: Sequence[int], activation: Activation, encoder: RowEncoder | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.perceptron = Perceptron(inputs, hidden, activation)
        self.head = orthogonal_layer(nn.Linear(self.perceptron.outputs, 1), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """[N, I + P] -> normalised values [N]."""
        return to_float32(self.head(self.perceptron(x)))[:, 0]


class CentralActorCritic(PopArtValue):
    """Who acts needs the actor alone, and only that is published: entries `actor.*`. The critic is shown [N, I + P]."""

    def __init__(
        self,
        shape: Sequence[int],
        privileged: int,
        heads: Heads,
        hidden: Sequence[int],
        activation: Activation,
        *,
        normalize_observation: bool = False,
        core: Core | None = None,
        encoders: tuple[RowEncoder, RowEncoder] | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.heads = tuple(shape), heads
        own, its = encoders or (None, None)
        inputs = prod(shape) if own is None else own.features
        # in this order all entries of the actor lie side by side: trainable parameters come first, then buffers
        self.critic = _Critic(inputs + privileged, hidden, activation, its)
        self.actor = _Actor(inputs, heads, hidden, activation, normalize_observation, core, own)
        self.privileged = RunningMoments(privileged) if normalize_observation else None
        self.returns = return_moments()

    @property
    def observations(self) -> RunningMoments | None:
        """Of what the actor sees, where it is normalised."""
        return self.actor.observations

    @property
    def log_std(self) -> Tensor | None:
        """[D], where there are amounts."""
        return self.actor.log_std

    @property
    def value_head(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the critic's last layer."""
        return self.critic.head.weight, self.critic.head.bias

    def inputs(self, observation: Tensor) -> Tensor:
        """[..., *shape] -> [N, I] float32, normalised where the policy does that; for encoders [N, *shape] as it is."""
        if self.actor.encoder is not None:
            return observation.reshape(-1, *self.shape)
        x = flatten_inputs(observation, self.shape)
        return x if self.observations is None else self.observations.standard(x)

    def forward(self, x: Tensor, privileged: Tensor, recall: RecurrentContext | None = None) -> tuple[Tensor, Tensor]:
        """`inputs(...)` [N, I] and what only learners see [N, P] -> outputs [A, N] and normalised values [N], with
        gradients. A recurrent actor needs to know of which streams the rows are."""
        more = privileged if self.privileged is None else self.privileged.standard(privileged)
        shown = x if self.critic.encoder is None else self.critic.encoder(x)
        values = self.critic(torch.cat([shown, more], 1))
        x = x if self.actor.encoder is None else self.actor.encoder(x)
        return self.actor(recalled(self.actor.core, x, recall)), values

    def observe(self, rows: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds rows [N, *shape] that all `ranks` saw to the statistics of observations, where these are kept."""
        for encoder in (self.actor.encoder, self.critic.encoder):
            if encoder is not None:
                encoder.observe(rows, ranks)
        if self.observations is not None:
            self.observations.update(flatten_inputs(rows, self.shape), ranks)

    def update_privileged(self, rows: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds what only learners saw [N, P] in all `ranks` to its statistics, where these are kept."""
        if self.privileged is not None:
            self.privileged.update(rows, ranks)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Noise, greedy: bool = False, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """As `ActorCritic.act`, but that nobody says here what it is worth."""
        x, after = self.inputs(observation), {}
        x = x if self.actor.encoder is None else self.actor.encoder(x)
        if self.actor.core is not None:
            assert state is not None
            features, next_state = self.actor.core.step(x, torch.from_numpy(state).to(x.device))
            x, after = torch.cat([x, features], 1), {"state": next_state.cpu().numpy()}
        log_std = None if self.log_std is None else self.log_std.cpu().numpy()
        return {**self.heads.sample(self.actor(x).cpu().numpy(), log_std, None if greedy else noise, legal), **after}
