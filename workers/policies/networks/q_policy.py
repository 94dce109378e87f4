"""What policies that do what they value most have in common: an online and a target network, and exploration. The
network of DQN: mean returns of each action (Mnih et al. 2015).

In flow: stacked observations. Out flows: epsilon-greedy actions among the legal ones (acting), or mean returns
(learning).
Legend: `B` rows, `F` stacked frames, `I` elements of an observation, `A` actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.networks.declared_outputs import DeclaredOutputs
from workers.policies.networks.layers import Perceptron, RowEncoder, apply_head, dueling, head_of, noise_size
from workers.policies.networks.recurrent import Core
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.kernels import Activation


class QNetworkSpec(NamedTuple):
    """What a network that values actions is made of. With `dueling` its head gives a value and advantages (Wang et al.
    2016), a `noisy` one explores by noise in its weights."""

    shape: Sequence[int]
    """Of one frame"""
    actions: int
    hidden: Sequence[int]
    activation: Activation
    frames: int = 1
    dueling: bool = False
    noisy: bool = False
    encoder: Callable[[], RowEncoder] | None = None
    """What reads the stacked frames, made anew for each network"""
    core: Callable[[int], Core] | None = None
    """What remembers rows of so many features, made anew for each network"""
    whole: bool = False
    """Whether the encoder gives what a head would"""

    def perceptron(self) -> Perceptron:
        """Of F * I inputs, or of what an encoder gives, and of what a core remembers of them."""
        encoder = None if self.encoder is None else self.encoder()
        core = None if self.core is None else self.core(self.inputs if encoder is None else encoder.features)
        return Perceptron(self.inputs, self.hidden, self.activation, encoder, core)

    def head(self, inputs: int, outputs: int) -> nn.Linear | None:
        """The last layer."""
        return None if self.whole else head_of(inputs, outputs, self.noisy)

    @property
    def inputs(self) -> int:
        """F * I"""
        return self.frames * prod(self.shape)


def stacked_rows(observation: Tensor, frames: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """[..., B, F, *shape] -> [..., B, F * I] float32 on `device`. Raises ValueError for another number of frames."""
    rows = observation.flatten(-1 - len(shape))
    given = observation.shape[-1 - len(shape)]
    if given != frames:
        raise ValueError(
            f"the policy stacks {frames} frames but was given {given}; pass [B, F, *shape], newest frame last"
        )
    return rows.to(torch.float32).to(device)


def greedy_action(means: Tensor, legal: Tensor | None) -> Tensor:
    """The action [..., B] of greatest mean return [..., B, A] among the `legal` ones [..., B, A]; among all where none
    is known."""
    return (means if legal is None else means.masked_fill(~legal, -torch.inf)).argmax(-1)


def choose(means: Tensor, noise: Noise | None, epsilon: float | NDArray[np.float64], legal: Legal) -> NDArray[np.int64]:
    """Actions [B] by mean returns [B, A]: the best `legal` ones [B, A], or with the chance `epsilon` (or [B]) any
    of these.

    Takes from `noise` B float32 numbers and then B integers (B more numbers where only some actions are legal); without
    it nothing is explored.
    """
    among = None if legal is None else torch.from_numpy(legal).to(means.device)
    action: NDArray[np.int64] = greedy_action(means, among).cpu().numpy()
    if noise is not None:
        explores = noise.random(len(action), np.float32) < epsilon
        np.copyto(action, _any(len(action), means.shape[1], legal, noise), where=explores)
    return action


def _any(rows: int, actions: int, legal: Legal, noise: Noise) -> NDArray[np.int64]:
    """Any legal action in each of so many rows, all equally likely."""
    if legal is None:
        return noise.integers(0, actions, rows)
    counts = legal.cumsum(1)
    # below the count by construction: a float32 below 1 times a whole number may round up to it
    which = np.minimum((noise.random(rows, np.float32) * counts[:, -1]).astype(np.int64), counts[:, -1] - 1)
    action: NDArray[np.int64] = (counts > which[:, None]).argmax(1)
    return action


class QNetwork(nn.Module):
    """A network whose last layer is `head`; None: it has none, as an encoder is all of it. Each kind has its own
    `head_outputs`."""

    perceptron: Perceptron
    head: nn.Linear | None

    def head_outputs(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Features [B, H] -> what is learned, [B, ...]; normal numbers are for a noisy head, which is taken at its
        means without them."""
        raise NotImplementedError

    def forward(self, x: Tensor, noise: Tensor | None = None, recall: RecurrentContext | None = None) -> Tensor:
        """The same of inputs [B, I]. `recall`: how the rows hang together, for who remembers."""
        return self.head_outputs(self.perceptron(x, recall), noise)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The same of inputs [B, I] in states [B, S], and the states after them."""
        features, after = self.perceptron.step(x, state)
        return self.head_outputs(features), after

    @property
    def numbers(self) -> int:
        """Normal numbers that a noisy head takes for each row; 0 where it is a plain one."""
        return noise_size(self.head)


class QPolicy(nn.Module):
    """An online network and its target, alike, with the exploration rate: one unit for publication. Where the
    network gives more than mean returns, `means` and `step` make these of it."""

    epsilon: Tensor

    def __init__(
        self, shape: Sequence[int], actions: int, frames: int, epsilon: float, online: QNetwork, target: QNetwork
    ) -> None:
        super().__init__()
        self.shape, self.actions, self.frames = tuple(shape), actions, frames
        self.online, self.target = online, target
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        self.encoded = any(isinstance(part, RowEncoder) for part in online.modules())
        """Whether an encoder reads what is seen."""
        self.modular = self.encoded or any(isinstance(part, Core) for part in online.modules())
        """Whether it has parts for which there is no faster form: it is not stacked then."""
        self.declared: DeclaredOutputs | None = None
        """What it says besides, by an algorithm of the user's own, of what its online network makes of a row."""
        self.numbers = online.numbers
        """Normal numbers that a noisy head takes for each row; 0 where it is a plain one."""
        self.register_buffer("epsilon", torch.tensor(epsilon, dtype=torch.float64))

    def means(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """`inputs(...)` [B, F * I] and normal numbers [B, numbers], if any, -> mean returns [B, A] by the online
        network."""
        means: Tensor = self.online(x, noise)
        return means

    def inputs(self, observation: Tensor) -> Tensor:
        """[B, F, *shape] -> [B, F * I] float32, or for an encoder as it is. Raises ValueError for another number of
        frames."""
        if self.encoded:
            return observation.to(self.epsilon.device)
        return stacked_rows(observation, self.frames, self.shape, self.epsilon.device)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`inputs(...)` [B, F * I] and states [B, S] -> mean returns [B, A] by the online network, and the states after
        it."""
        return self.online.step(x, state)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Noise, greedy: bool = False, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """Epsilon-greedy actions for `observation` [B, F, *shape], of which `legal` [B, A] may be chosen: `action`
        int64 [B], columns of declared outputs, and of who remembers, and is in `state` [B, S], the `state` after it.

        Takes [B, numbers] normal numbers from `noise` where the head is noisy, B float32 numbers and then B integers
        (B more numbers where only some actions are legal), or none when `greedy` (then epsilon is 0, and a noisy head
        is taken at its means).
        """
        drawn = None
        if self.numbers and not greedy:
            normal = noise.standard_normal((len(observation), self.numbers), np.float32)
            drawn = torch.from_numpy(normal).to(self.epsilon.device)
        x, after = self.inputs(observation), {}
        if state is None:
            means = self.means(x, drawn)
        else:
            means, next_state = self.step(x, torch.from_numpy(state).to(x.device))
            after = {"state": next_state.cpu().numpy()}
        said = {} if self.declared is None else self.declared.acted(self.online.perceptron(x))
        return {"action": self._choose(means, None if greedy else noise, legal), **said, **after}

    def _choose(self, means: Tensor, noise: Noise | None, legal: Legal) -> NDArray[np.int64]:
        """Actions by mean returns [B, A], as `choose` makes them."""
        return choose(means, noise, 0.0 if noise is None else self.epsilon.item(), legal)


class ValueTower(QNetwork):
    """One network (online or target)."""

    def __init__(self, spec: QNetworkSpec) -> None:
        super().__init__()
        self.dueling = spec.dueling
        self.perceptron = spec.perceptron()
        self.head = spec.head(self.perceptron.outputs, spec.actions + spec.dueling)

    def head_outputs(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """-> mean returns [B, A]"""
        heads = apply_head(self.head, features, noise)
        return dueling(heads) if self.dueling else heads


class DQNPolicy(QPolicy):
    """Online and target network with the exploration rate."""

    online: ValueTower
    target: ValueTower

    def __init__(self, spec: QNetworkSpec, epsilon: float = 1.0) -> None:
        super().__init__(spec.shape, spec.actions, spec.frames, epsilon, ValueTower(spec), ValueTower(spec))
