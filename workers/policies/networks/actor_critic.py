"""The policy of PPO: actions of any kind and a value from two perceptrons, or one for both, behind a common core
where the policy is recurrent; or an actor of its own, and beside it a central critic that sees more than it does.

In flow: observations, and for learning what only learners see. Out flows: actions with their
log-probabilities and values (acting), or outputs and normalised values with gradients (learning).

A central critic for decentralised actors is that of MAPPO (Yu et al. 2022); seen from one agent it is the asymmetric
actor-critic of Pinto et al. (2017). It remembers nothing, also where the actor does: what it is told besides should
leave nothing to remember.

Units: the value head speaks in normalised units; `value = returns.mean + returns.std * head`. Everything that leaves
the policy by `act`, and so `Segments.value`, is in the unit of the reward.

Legend: `B` rows acted on, `N` rows learnt from, `A` outputs, `K` heads, `C` their values, `D` amounts
(distributions.py), `H` units, `S` numbers of a state (recurrent.py), `I` inputs of the actor, `P` numbers that only
learners see.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workers.policies.distributions import Heads, Legal, Noise, Remembered
from workers.policies.networks.actor_critic_mlp import actor_critic_mlp, evaluate, two_towers
from workers.policies.networks.declared_outputs import DeclaredOutputs
from workers.policies.networks.layers import (
    HIDDEN_GAIN,
    Perceptron,
    RowEncoder,
    flatten_inputs,
    orthogonal,
    orthogonal_layer,
)
from workers.policies.networks.normalization import CLIP, PopArtValue, RunningMoments, return_moments
from workers.policies.networks.recurrent import Core, RecurrentCore, recalled
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective
from workers.policies.tensors.kernels import Activation, to_float32
from workers.policies.tensors.scratch import ScratchBuffers


class ActorCritic(PopArtValue):
    """Policy and value network with their normalisers; parameters in the order of `actor_critic_mlp.py`."""

    value_weight: nn.Parameter
    value_bias: nn.Parameter

    def __init__(
        self,
        shape: Sequence[int],
        heads: Heads,
        hidden: Sequence[int],
        activation: Activation,
        *,
        share_layers: bool = False,
        normalize_observation: bool = False,
        core: Core | None = None,
        encoder: RowEncoder | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.heads, self.activation, self.share_layers = tuple(shape), heads, activation, share_layers
        self.features, self.scratch = prod(shape) if encoder is None else encoder.features, ScratchBuffers()
        self._begin([self.features + (core.size if core is not None else 0), *hidden])
        # the same everywhere, and 1 at first: half the range of a bounded action
        self.log_std = nn.Parameter(torch.zeros(heads.log_stds)) if heads.log_stds else None
        self.observations = RunningMoments(self.features) if normalize_observation and encoder is None else None
        self.encoder = encoder
        self.modular = encoder is not None or not (core is None or isinstance(core, RecurrentCore))
        """Whether it has parts that torch alone computes: it is not stacked then."""
        self.declared: DeclaredOutputs | None = None
        """What it says besides, by an algorithm of the user's own."""
        self.returns = return_moments()
        self.core = core

    def _begin(self, sizes: Sequence[int]) -> None:
        """Makes the perceptrons, whose layers have so many inputs."""
        towers = 1 if self.share_layers else 2
        for index, (inputs, units) in enumerate(pairwise(sizes)):
            stack = orthogonal((towers, inputs, units), HIDDEN_GAIN)
            if index == 0:
                self._add("layer_0", torch.cat(tuple(stack), 1), torch.zeros(towers * units))
            else:
                self._add(f"layer_{index}", stack, torch.zeros(towers, 1, units))
        self._add("policy", orthogonal((sizes[-1], self.heads.outputs), 0.01), torch.zeros(self.heads.outputs))
        self._add("value", orthogonal((sizes[-1], 1), 1.0), torch.zeros(1))

    def _add(self, name: str, weight: Tensor, bias: Tensor) -> None:
        self.register_parameter(f"{name}_weight", nn.Parameter(weight))
        self.register_parameter(f"{name}_bias", nn.Parameter(bias))

    def tower_parameters(self) -> list[nn.Parameter]:
        """Those of `actor_critic_mlp.py`, in its order."""
        # parameters() walks all modules by name, which takes longer than a layer
        return [tensor for name, tensor in self._parameters.items() if tensor is not None and name != "log_std"]

    @property
    def value_head(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the value head."""
        return self.value_weight, self.value_bias

    def inputs(self, observation: Tensor) -> Tensor:
        """[..., *shape] -> [N, I] float32 in scratch memory, normalised where the policy does that; for an encoder
        [N, *shape] as it is."""
        if self.encoder is not None:
            return observation.reshape(-1, *self.shape)
        rows = observation.reshape(-1, self.features)
        x = self.scratch.take("inputs", tuple(rows.shape), self.value_weight).copy_(rows)
        if self.observations is None:
            return x
        return x.sub_(self.observations.mean).div_(self.observations.std).clamp_(-CLIP, CLIP)

    def observe(self, rows: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds rows [N, *shape] that all `ranks` saw to the statistics of observations, where these are kept."""
        if self.encoder is not None:
            self.encoder.observe(rows, ranks)
        elif self.observations is not None:
            self.observations.update(flatten_inputs(rows, self.shape), ranks)

    def forward(self, x: Tensor, recall: RecurrentContext | None = None) -> tuple[Tensor, Tensor]:
        """`inputs(...)` [N, I] -> outputs [A, N] and normalised values [N], with gradients. A recurrent policy needs to
        know of which streams the rows are.

        One policy has one scratch memory: take the gradient before the next `inputs`, `forward` or `act`.
        """
        return self.towers(self.read(x, recall))

    def read(self, x: Tensor, recall: RecurrentContext | None = None) -> Tensor:
        """The same -> what encoder and core give [N, I]."""
        if self.encoder is not None:
            x = self.encoder(x)
        return recalled(self.core, x, recall)

    def towers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What encoder and core give [N, I] -> outputs [A, N] and normalised values [N], with gradients."""
        return actor_critic_mlp(x, self.tower_parameters(), self.activation, self.scratch)

    def infer(self, x: Tensor, scratch: ScratchBuffers) -> tuple[Tensor, Tensor]:
        """The same without gradients."""
        weights = [tensor.detach() for tensor in self.tower_parameters()]
        return evaluate(x, weights, self.activation, scratch)[:2]

    def reference(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by torch's own operations, which other programs can repeat."""
        return two_towers(x, self.tower_parameters(), self.activation)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Noise, greedy: bool = False, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """Actions for `observation` [B, *shape], of which values `legal` [B, C] may be chosen; a recurrent policy
        needs the `state` [B, S] before it.

        Returns `action` int64 [B] (or [B, K] where there is more than one head or an amount), `amount` float32 [B, D]
        if there are any, `log_probability` float32 [B], `value` float32 [B] in the unit of the reward, columns of
        declared outputs and, where the policy is recurrent, the `state` float32 [B, S] after it.
        Takes numbers from `noise` as `sample` says, or none when `greedy` (then the likeliest action is chosen).
        """
        x, after = self.inputs(observation), {}
        if self.encoder is not None:
            x = self.encoder(x)
        if self.core is not None:
            assert state is not None
            features, next_state = self.core.step(x, torch.from_numpy(state).to(x.device))
            x, after = torch.cat([x, features], 1), {"state": next_state.cpu().numpy()}
        logits, values = self.infer(x, self.scratch)
        mean, std = self.returns.scalars()
        value = values.mul_(std).add_(mean).cpu().numpy()
        log_std = None if self.log_std is None else self.log_std.detach().cpu().numpy()
        drawn = self.heads.sample(logits.cpu().numpy(), log_std, None if greedy else noise, legal)
        said = {} if self.declared is None else self.declared.acted(x)
        return {**drawn, "value": value, **said, **after}


class OwnActorCritic(ActorCritic):
    """The policy of PPO whose network is the user's own as a whole: `encoder` gives outputs and, last, a value. That is
    scaled and moved by two parameters, the head that is rescaled as returns change."""

    def __init__(self, shape: Sequence[int], heads: Heads, encoder: RowEncoder) -> None:
        super().__init__(shape, heads, (), "tanh", encoder=encoder)

    def _begin(self, sizes: Sequence[int]) -> None:
        self._add("value", torch.ones(1, 1), torch.zeros(1))

    def towers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, A + W + 1], with what is said besides in the middle -> outputs [A, N] and normalised values [N]."""
        return x[:, : self.heads.outputs].T, x[:, -1] * self.value_weight[0] + self.value_bias

    def infer(self, x: Tensor, scratch: ScratchBuffers) -> tuple[Tensor, Tensor]:
        """The same."""
        return self.towers(x)

    reference = towers


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
