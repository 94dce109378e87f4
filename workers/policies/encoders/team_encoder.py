"""From a row of what a team is shown to features of each member, by the encoder that the configuration names.

In flow: rows [N, (F,) *shown]. Out flow: features [N, M * features] float32, member behind member, with gradients.
Each member's own part, and what is common, are read as if it were an agent on its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from protocol.config.network import EntryEncoder, MLPEncoder, OneEncoder
from workers.policies.encoders.observation_spec import ObservationSpec
from workers.policies.encoders.policy_encoder import PolicyEncoder, reads
from workers.policies.encoders.row_splitter import RowSplitter
from workers.policies.networks.layers import RowEncoder
from workers.policies.observation_encoding import ObservationEncoding
from workers.policies.tensors.kernels import Activation


class TeamEncoder(RowEncoder):
    """The encoders `config` of a team whose `members` are shown rows in `encoding`: one that is `shared` by all, or one
    for each, which reads those of its parts that a member has. Who has none of them is read as numbers."""

    def __init__(
        self,
        config: OneEncoder | Mapping[str, OneEncoder],
        encoding: ObservationEncoding,
        members: tuple[str, ...],
        activation: Activation,
        *,
        frames: int,
        shared: bool,
    ) -> None:
        super().__init__()
        self._splitter = RowSplitter(encoding, frames)
        parts = [encoding.of_member(name) for name in members]
        self._seen = [
            {part.path: whole.path for part in own.parts for whole in encoding.parts if whole.column == part.column}
            for own in parts
        ]
        specs = [RowSplitter(own, frames).spec for own in parts[: 1 if shared else None]]
        kinds = [_fitting(config, spec) for spec in specs]
        named = config if isinstance(config, Mapping) else ()
        if not any(kinds) or not all(any(path in spec for spec in specs) for path in named):
            kinds[0] = config  # which says why it cannot
        made = [
            PolicyEncoder(kind or MLPEncoder(), own, activation, frames=frames)
            for kind, own in zip(kinds, parts, strict=False)
        ]
        self.encoders = nn.ModuleList(made)
        self._readers = made * (len(members) if shared else 1)
        self.widths = [one.features for one in self._readers]
        """Features of each member."""
        self.features = sum(self.widths)

    def forward(self, rows: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Rows [N, (F,) *shown], or the leaves' own columns by path -> [N, features]."""
        leaves = self._splitter.apart(rows)
        seen = ({path: leaves[whole] for path, whole in own.items()} for own in self._seen)
        return torch.cat([read(own) for read, own in zip(self._readers, seen, strict=True)], 1)

    def reader(self, path: str) -> str:
        """What reads the leaf `path` of the team, in a word or two."""
        return self._of(path)[0].reader(self._of(path)[1])

    def flattens(self, path: str) -> bool:
        """Whether each number of the leaf `path` of the team is an input of its own."""
        return self._of(path)[0].flattens(self._of(path)[1])

    def scale(self, path: str) -> float | None:
        """What the bytes of the image at `path` of the team are divided by; None: it is none, or is not."""
        return self._of(path)[0].scale(self._of(path)[1])

    def _of(self, path: str) -> tuple[PolicyEncoder, str]:
        pairs = zip(self._readers, self._seen, strict=True)
        return next((one, part) for one, own in pairs for part, whole in own.items() if whole == path)


def _fitting(
    config: OneEncoder | Mapping[str, OneEncoder], seen: ObservationSpec
) -> OneEncoder | Mapping[str, OneEncoder] | None:
    """What of `config` can read something of what a member sees; nothing where nothing can."""
    if isinstance(config, Mapping):
        return {path: one for path, one in config.items() if path in seen}
    own = isinstance(config, EntryEncoder | MLPEncoder)
    return config if own or any(reads(config, leaf) for leaf in seen.values()) else None
