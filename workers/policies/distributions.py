"""What actions a network's outputs mean: a categorical distribution a head, a normal one an amount, all independent, or
each of what was chosen before it.

In flow: outputs [A, n], logits of all heads first, then means of the amounts, then tables, of a pair each: what each
value of the one that was chosen before adds to the outputs of the other. Out flows: samples (acting), or
log-probabilities and entropies with gradients (learning).

Legend: `n` rows, `K` heads, `C` values of all heads, `D` amounts, `A = C + D`, and the numbers of all tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import log, pi
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_IMPOSSIBLE = -1e9
"""Logit of what is not legal: its probability is 0, and 0 times its logarithm is 0 as well."""
_LEAST = np.float32(2**-25)
"""Half of the least uniform number above 0, in the place of 0."""


class Noise(Protocol):
    """Where random numbers come from: numpy's generator, or several of them side by side."""

    def random(self, size: int, dtype: type[np.float32] = ..., /) -> NDArray[np.float32]:
        """Uniform in [0, 1)."""

    def standard_normal(self, size: tuple[int, int], dtype: type[np.float32] = ..., /) -> NDArray[np.float32]:
        """Normal."""

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        """Uniform in low..high - 1."""


Legal = NDArray[np.bool_] | None
"""[n, C]: which values of all heads may be chosen; None: all of them."""
Remembered = NDArray[np.float32] | None
"""[n, S]: the states of a recurrent policy; None of any other."""


@dataclass(frozen=True, slots=True)
class Heads:
    """`sizes` [K]: values of each head; `continuous`: D; `order` [K]: that in which heads are chosen where each sees
    those before it, and amounts see all of them; empty: none sees another."""

    sizes: tuple[int, ...]
    continuous: int = 0
    order: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """A."""
        return _tables(self.sizes, self.continuous, self.order)[1]

    @property
    def single(self) -> bool:
        """Whether there is one head and nothing else: actions are [n] then, not [n, K]."""
        return len(self.sizes) == 1 and not self.continuous

    @property
    def log_stds(self) -> int:
        """How many logarithms of standard deviations a policy has for its amounts."""
        return self.continuous

    def log_prob_and_entropy(
        self, outputs: Tensor, log_std: Tensor | None, action: Tensor, amount: Tensor | None, legal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [n] of `action` ([n] or [n, K] int64) with `amount` [n, D] under `outputs`
        [A, n].

        `log_std` [D], or [D, n]; `legal` [n, C]: where False, a value has no probability. The entropy of heads that see
        others is that which they have after what these chose: in the mean over actions, that of all together.
        """
        chances, entropy = [], []
        chosen: dict[int, Tensor] = {}
        for head in self.order or range(len(self.sizes)):
            logits = self._outputs_of(head, outputs, chosen)
            if legal is not None:
                logits = logits.masked_fill(~legal[:, self._at(head)].T, _IMPOSSIBLE)
            log_policy = logits.log_softmax(0)
            index = action.view(1, -1) if self.single else action[:, head].unsqueeze(0)
            chances.append(log_policy.gather(0, index)[0])
            entropy.append(-(log_policy.exp() * log_policy).sum(0))
            if self.order:
                chosen[head] = index[0]
        if self.continuous:
            assert log_std is not None
            assert amount is not None
            spread = log_std.view(self.continuous, -1)
            error = (amount.T - self._outputs_of(len(self.sizes), outputs, chosen)) * (-spread).exp()
            chances.append(-(0.5 * error.square() + spread + 0.5 * log(2 * pi)).sum(0))
            entropy.append((spread + 0.5 * (1 + log(2 * pi))).sum(0).expand(outputs.shape[1]))
        if len(chances) == 1:
            return chances[0], entropy[0]
        return torch.stack(chances).sum(0), torch.stack(entropy).sum(0)

    def sample(
        self,
        outputs: NDArray[np.float32],
        log_std: NDArray[np.float32] | None,
        noise: Noise | None,
        legal: Legal = None,
    ) -> dict[str, NDArray]:
        """`action`, `log_probability` and, where there are amounts, `amount` from `outputs` [A, n]; the likeliest
        without `noise`. Takes n float32 numbers for each head, in their order, then [n, D] normal ones."""
        if self.single:  # most policies make one choice, and most calls are short
            logits = outputs if legal is None else np.where(legal.T, outputs, np.float32(_IMPOSSIBLE))
            action, log_probability = _sample(logits, noise)
            return {"action": action, "log_probability": log_probability}
        n, chance = outputs.shape[1], np.zeros(outputs.shape[1], np.float32)
        chosen: dict[int, NDArray] = {}
        actions = np.empty((n, len(self.sizes)), np.int64)
        for head in self.order or range(len(self.sizes)):
            logits = self._outputs_of(head, outputs, chosen)
            if legal is not None:
                logits = np.where(legal[:, self._at(head)].T, logits, np.float32(_IMPOSSIBLE))
            action, log_probability = _sample(logits, noise)
            actions[:, head] = action
            chance += log_probability
            if self.order:
                chosen[head] = action
        found: dict[str, NDArray] = {}
        if self.continuous:
            assert log_std is not None
            mean = self._outputs_of(len(self.sizes), outputs, chosen).T
            error = np.zeros_like(mean) if noise is None else noise.standard_normal(mean.shape, np.float32)
            found["amount"] = mean + np.exp(log_std) * error
            chance -= (0.5 * error * error + log_std + np.float32(0.5 * log(2 * pi))).sum(1)
        return {"action": actions, "log_probability": chance, **found}

    def greedy_choices(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Choices [n, K] that are done without exploring: of each head the likeliest, after those before it."""
        return self.greedy(outputs, legal)[0]

    def greedy(self, outputs: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same, and means of the amounts [n, D] after them."""
        best: dict[int, Tensor] = {}
        for head in self.order or range(len(self.sizes)):
            logits = self._outputs_of(head, outputs, best if self.order else {})
            if legal is not None:
                logits = logits.masked_fill(~legal[:, self._at(head)].T, -torch.inf)
            best[head] = logits.argmax(0)
        means = self._outputs_of(len(self.sizes), outputs, best if self.order else {}).T
        return torch.stack([best[head] for head in range(len(self.sizes))], 1), means

    def _at(self, part: int) -> slice:
        """Where the outputs of a head lie, or, for K, those of the amounts."""
        start = sum(self.sizes[:part])
        return slice(start, start + (*self.sizes, self.continuous)[part])

    def _outputs_of(self, part: int, outputs: Any, chosen: Mapping[int, Any]) -> Any:
        """The outputs of a head, or, for K, of the amounts, where these were `chosen` before; of an array, or of a
        tensor."""
        own, width = outputs[self._at(part)], (*self.sizes, self.continuous)[part]
        for before, choice in chosen.items():
            start, values = _tables(self.sizes, self.continuous, self.order)[0][before, part], self.sizes[before]
            table = outputs[start : start + values * width].reshape(values, width, outputs.shape[1])
            if isinstance(choice, Tensor):
                own = own + table.gather(0, choice.expand(1, width, -1))[0]
            else:
                own = own + np.take_along_axis(table, choice[None, None], 0)[0]
        return own


@cache
def _tables(sizes: tuple[int, ...], continuous: int, order: tuple[int, ...]) -> tuple[dict[tuple[int, int], int], int]:
    """Where the table begins of each head that another one, or, as K, the amounts, see; and where outputs end."""
    widths, end = (*sizes, continuous), sum(sizes) + continuous
    found = {}
    for place, part in enumerate((*order, len(sizes)) if order else ()):
        for before in order[:place]:
            found[before, part] = end
            end += widths[before] * widths[part]
    return found, end


class Distribution(Protocol):
    """What actions a network of the user's own may choose for n rows, and how likely: choices [n, K] int64, and amounts
    [n, D] float32."""

    def sample(self, uniform: Tensor, /) -> tuple[Tensor, Tensor]:
        """Choices and amounts by numbers [n, K + D] that are uniform in (0, 1), and by no others."""

    def mode(self) -> tuple[Tensor, Tensor]:
        """What is done without exploring."""

    def log_prob(self, choices: Tensor, amounts: Tensor, /) -> Tensor:
        """[n]: the logarithm of how likely they are together."""

    def entropy(self) -> Tensor:
        """[n]"""


@dataclass(frozen=True, slots=True)
class OwnHeads(Heads):
    """Actions as `network`, the user's own (encoders/own_network.py), has them by its method `distribution`."""

    network: Any = None

    @property
    def outputs(self) -> int:
        """A: what it gives first."""
        width: int = self.network.acting
        return width

    def distribution(self, outputs: Tensor, legal: Tensor | None) -> Distribution:
        """Of rows of outputs [A, n]."""
        found: Distribution = self.network.distribution(outputs.T, legal)
        return found

    @property
    def log_stds(self) -> int:
        """None: they are the network's."""
        return 0

    def log_prob_and_entropy(
        self, outputs: Tensor, log_std: Tensor | None, action: Tensor, amount: Tensor | None, legal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As its distribution has them."""
        rows = outputs.shape[1]
        amounts = outputs.new_zeros(rows, 0) if amount is None else amount
        told: tuple[Tensor, Tensor] = self.network.evaluate_actions(outputs.T, legal, action.reshape(rows, -1), amounts)
        return told

    @torch.no_grad()
    def sample(
        self,
        outputs: NDArray[np.float32],
        log_std: NDArray[np.float32] | None,
        noise: Noise | None,
        legal: Legal = None,
    ) -> dict[str, NDArray]:
        """As its distribution draws them; takes n float32 numbers for each choice and each amount. ConfigurationError
        for what no world can be given."""
        uniform, device = None, self.network.device
        if noise is not None:
            numbers = range(len(self.sizes) + self.continuous)
            drawn = np.stack([noise.random(outputs.shape[1], np.float32) for _ in numbers], 1)
            uniform = torch.from_numpy(np.maximum(drawn, _LEAST)).to(device)
        among = None if legal is None else torch.from_numpy(legal).to(device)
        choices, amounts, chance = self.network.sample_actions(torch.from_numpy(outputs).to(device).T, among, uniform)
        found = {"action": choices[:, 0] if self.single else choices, "log_probability": chance}
        found |= {"amount": amounts} if self.continuous else {}
        return {name: column.cpu().numpy() for name, column in found.items()}

    def greedy_choices(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Choices [n, K] that are done without exploring."""
        return self.distribution(outputs, legal).mode()[0]


def _sample(logits: NDArray[np.float32], noise: Noise | None) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Actions and log-probabilities [n] from softmax(logits) [C, n], by inversion; its mode without `noise`."""
    rows = logits.shape[1]
    shifted = logits - np.maximum.reduce(logits, 0)
    cumulative = np.exp(shifted).cumsum(0)
    total = cumulative[-1]
    if noise is None:
        action = shifted.argmax(0)
    else:  # below C by construction: only the first C - 1 bounds are counted
        above = cumulative[:-1] <= noise.random(rows, np.float32) * total
        action = above[0].astype(np.int64) if len(above) == 1 else np.add.reduce(above, 0)  # of one row it is dear
    chosen = shifted.reshape(-1).take(action if rows == 1 else action * rows + np.arange(rows))
    chosen -= np.log(total)
    return action, chosen
