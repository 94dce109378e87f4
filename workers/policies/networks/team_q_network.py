"""The policy of a team whose value is decomposed: each member values its choices by its own observation (VDN, QMIX).

In flow: stacked observations of the team. Out flows: epsilon-greedy choices of every member (acting), or values of all
choices, and the team's value of those chosen (learning): their sum (Sunehag et al. 2018, section 3), or what a
monotonic mixing network makes of them (Rashid et al. 2018). That value never falls where a member's rises: the mixing
network has weights of one sign, made from the observations of the whole team by hypernetworks.

Legend: `B` rows, `F` stacked frames, `I` inputs of a frame, `M` members, `C` choices of all, `S` numbers of a state,
`U` units, `D` what of a row the networks see: F * I numbers, or features that encoders made of each member's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import elu

from workers.policies.distributions import Legal, Noise
from workers.policies.networks.layers import RowEncoder
from workers.policies.networks.q_policy import QNetwork, QNetworkSpec, QPolicy, ValueTower, choose
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.team_layout import TeamMember
from workers.policies.tensors.kernels import to_float32


class MonotonicMixer(nn.Module):
    """One hidden layer of `units`; its last bias is a perceptron of the state with one layer of as many."""

    def __init__(self, inputs: int, members: int, units: int) -> None:
        super().__init__()
        self.members = members
        self.first = nn.Linear(inputs, members * units)
        self.first_bias = nn.Linear(inputs, units)
        self.last = nn.Linear(inputs, units)
        self.last_bias = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, 1))

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Values [B, M] in states [B, S] -> [B]: `elu(q |W1(s)| + b1(s)) |w2(s)| + b2(s)` (section 4.1, figure 2)."""
        weight = self.first(state).abs().view(len(values), self.members, -1)
        hidden = elu(torch.bmm(values[:, None], weight)[:, 0] + self.first_bias(state))
        return to_float32((hidden * self.last(state).abs()).sum(1) + self.last_bias(state)[:, 0])


class TeamLayout(NamedTuple):
    """Who is in the team, and what of the numbers that are seen each member sees: its own and the `common` ones."""

    members: tuple[TeamMember, ...]
    common: slice
    frames: int

    @classmethod
    def of_features(cls, members: Sequence[TeamMember], widths: Sequence[int]) -> TeamLayout:
        """Where so many features of each member lie one behind the other; what is common is among them already."""
        ends = [*accumulate(widths)]
        pairs = zip(members, ends, widths, strict=True)
        seen = (replace(member, start=end - width, stop=end) for member, end, width in pairs)
        return cls(tuple(seen), slice(ends[-1], ends[-1]), 1)

    @property
    def width(self) -> int:
        """I."""
        return self.common.stop

    @property
    def choices(self) -> int:
        """C."""
        return sum(member.choices for member in self.members)

    def of(self, x: Tensor, member: TeamMember) -> Tensor:
        """[B, F * I] -> [B, F * (its own + common)]."""
        frames = x.view(-1, self.frames, self.width)
        own = frames[:, :, member.start : member.stop]
        return torch.cat([own, frames[:, :, self.common]], 2).flatten(1)

    def inputs(self, member: TeamMember) -> int:
        """How many numbers that are."""
        return self.frames * (member.width + self.common.stop - self.common.start)


class MemberTower(QNetwork):
    """One network (online or target): `shared` by all members, of whom each is told by one more input which it is, or
    one for each, made as `spec` says but for what goes in and comes out. `mixing`: units of the network that mixes
    their values; None: they are added up. `encoder`: what reads the team's rows first."""

    def __init__(
        self,
        sight: TeamLayout,
        spec: QNetworkSpec,
        encoder: RowEncoder | None = None,
        *,
        shared: bool,
        mixing: int | None,
    ) -> None:
        super().__init__()
        self.sight, self.shared, self.encoder = sight, shared, encoder
        told = len(sight.members) if shared else 0
        towers = [
            ValueTower(spec._replace(shape=(sight.inputs(member) + told,), actions=member.choices))
            for member in (sight.members[:1] if shared else sight.members)
        ]
        self.networks = nn.ModuleList(towers)
        times = len(sight.members) if shared else 1
        self._numbers = [tower.numbers for tower in towers] * times
        cores = [tower.perceptron.core for tower in towers] * times
        self.states = [0 if core is None else core.state_size for core in cores]
        """Numbers that each member remembers, which are as many as it sees where a core keeps what was seen."""
        self.mixer = None if mixing is None else MonotonicMixer(sight.frames * sight.width, len(sight.members), mixing)

    @property
    def numbers(self) -> int:
        """Normal numbers for a row: those of all members, one behind the other."""
        return sum(self._numbers)

    def see(self, x: Tensor) -> Tensor:
        """Rows [B, F * I] float32, or for encoders as they are -> [B, D]."""
        seen: Tensor = x if self.encoder is None else self.encoder(x)
        return seen

    def forward(self, x: Tensor, noise: Tensor | None = None, recall: RecurrentContext | None = None) -> Tensor:
        """Rows as `see` takes them -> mean returns [B, C], member behind member. `noise` [B, numbers], where heads are
        noisy."""
        return self.values(self.see(x), noise, recall)

    def values(self, x: Tensor, noise: Tensor | None = None, recall: RecurrentContext | None = None) -> Tensor:
        """The same of what was seen of them, [B, D]; `recall`: how they hang together, for members that remember."""
        if self.shared:
            rows = self._of_all(x)
            drawn = None if noise is None else noise.view(len(rows), -1)
            told = None if recall is None else recall.of_members(len(self.sight.members))
            return self.networks[0](rows, drawn, told).view(-1, self.sight.choices)
        seen = [self.sight.of(x, member) for member in self.sight.members]
        count = len(seen)
        parts = [None] * count if noise is None else noise.split(self._numbers, 1)
        own = [None] * count if recall is None else recall.of_each(self.states)
        return torch.cat([net(*one) for net, *one in zip(self.networks, seen, parts, own, strict=True)], 1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What was seen [B, D] in states [B, S], the members' one behind the other -> mean returns [B, C], and the
        states after it."""
        if self.shared:
            rows = self._of_all(x)
            values, after = cast(ValueTower, self.networks[0]).step(rows, state.reshape(rows.shape[0], -1))
            return values.view(-1, self.sight.choices), after.reshape(x.shape[0], -1)
        members = self.sight.members
        given = zip(self.networks, members, state.split(self.states, 1), strict=True)
        told = [cast(ValueTower, network).step(self.sight.of(x, member), own) for network, member, own in given]
        return torch.cat([values for values, _ in told], 1), torch.cat([after for _, after in told], 1)

    def _of_all(self, x: Tensor) -> Tensor:
        """[B, D] -> [B * M, inputs]: what each member sees, and which it is."""
        seen = torch.stack([self.sight.of(x, member) for member in self.sight.members], 1)
        count = seen.shape[1]
        which = torch.eye(count, device=x.device).expand(x.shape[0], count, count)
        return torch.cat([seen, which], 2).flatten(0, 1)

    def mix(self, values: Tensor, x: Tensor) -> Tensor:
        """Values [B, M] of what the members chose on `x` [B, D] -> the team's [B]."""
        if self.mixer is None:
            return values.sum(1)
        mixed: Tensor = self.mixer(values, x)
        return mixed


class TeamQPolicy(QPolicy):
    """Online and target network with the exploration rate; every member explores for itself."""

    online: MemberTower
    target: MemberTower

    def __init__(
        self, shape: Sequence[int], frames: int, epsilon: float, online: MemberTower, target: MemberTower
    ) -> None:
        super().__init__(shape, online.sight.choices, frames, epsilon, online, target)
        self.sizes = [member.choices for member in online.sight.members]
        self.firsts = [sum(self.sizes[:member]) for member in range(len(self.sizes))]
        """[M]: where among all choices each member's begin."""

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`inputs(...)` and states [B, S] -> mean returns [B, C] by the online network, and the states after it."""
        return self.online.step(self.online.see(x), state)

    def picked(self, values: Tensor, action: Tensor) -> Tensor:
        """Of the values [B, C] those of `action` [B, M]: [B, M]."""
        return values.gather(1, action + action.new_tensor(self.firsts))

    def best(self, values: Tensor, legal: Tensor | None) -> Tensor:
        """Each member's choice [B, M] of greatest value among the `legal` ones [B, C]."""
        among = values if legal is None else values.masked_fill(~legal, -torch.inf)
        return torch.stack([part.argmax(1) for part in among.split(self.sizes, 1)], 1)

    def _choose(self, means: Tensor, noise: Noise | None, legal: Legal) -> NDArray[np.int64]:
        """[B, M]: of `noise` each member takes for itself what a policy of its own would."""
        epsilon = 0.0 if noise is None else self.epsilon.item()
        chosen = []
        for first, size in zip(self.firsts, self.sizes, strict=True):
            own = slice(first, first + size)
            chosen.append(choose(means[:, own], noise, epsilon, None if legal is None else legal[:, own]))
        return np.stack(chosen, 1)
