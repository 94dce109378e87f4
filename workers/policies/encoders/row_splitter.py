"""From rows as a policy is shown them to the leaves that its encoder reads.

Legend: `N` rows, `F` stacked frames.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from protocol.spaces import Box, dtype_of
from workers.policies.encoders.observation_spec import LeafSpec, ObservationSpec
from workers.policies.observation_encoding import (
    EncodedField,
    ObservationEncoding,
    channels_first,
    holds_pixels,
    is_image,
)


class RowSplitter:
    """Of rows in `encoding`, of which `frames` are stacked."""

    def __init__(self, encoding: ObservationEncoding, frames: int = 1) -> None:
        self._frames = frames
        self._parts = {part.path: part for part in encoding.parts}
        self._record = encoding.record
        self.spec = ObservationSpec(
            {path: self._leaf(part) for path, part in self._parts.items()}, alone=self._record is None
        )

    def split(self, rows: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """path -> [N, *shape], of rows [N, (F,) *shown], or of the leaves' own columns [N, (F,) *shape of one]."""
        leaves = self.apart(rows)
        return {path: self._merged(part, leaves[path]) for path, part in self._parts.items()}

    def apart(self, rows: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """path -> its own column [N, (F,) *shape of one], of the same; columns stay as they are."""
        if not isinstance(rows, Tensor):
            return rows
        if self._record is None or self._record.fields is None:
            return dict.fromkeys(self._parts, rows)
        found = {}
        for path, part in self._parts.items():
            form, at = self._record.fields[path][:2]
            held = rows[..., at : at + form.itemsize].view(_torch(part))
            found[path] = held.reshape(*rows.shape[:-1], *part.space.shape)
        return found

    def _merged(self, part: EncodedField, column: Tensor) -> Tensor:
        """[N, F, *shape of one] -> [N, *shape]."""
        shape = part.space.shape
        if self._frames == 1 or column.dim() == len(shape) + 1:
            return column.reshape(-1, *shape)
        if is_image(part.space) and (len(shape) == 2 or channels_first(shape)):
            return column if len(shape) == 2 else column.flatten(1, 2)
        return column.movedim(1, -2).flatten(-2) if shape else column

    def _leaf(self, part: EncodedField) -> LeafSpec:
        space = part.space
        low, high = (space.low, space.high) if isinstance(space, Box) else (None, None)
        size = int(np.prod(space.shape))
        places = torch.arange(size).view(space.shape).expand(1, self._frames, *space.shape)
        order = self._merged(part, places)[0] if self._frames > 1 else places[0, 0]
        return LeafSpec(
            part.path,
            tuple(order.shape),
            _torch(part),
            low if isinstance(low, int | float) else None,
            high if isinstance(high, int | float) else None,
            tuple(part.choices[place] for place in order.flatten().tolist()) if part.choices else (),
            is_image(space),
            holds_pixels(space, self._frames),
            is_image(space) and len(order.shape) == 3 and (len(space.shape) == 2 or channels_first(space.shape)),
        )


def _torch(part: EncodedField) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype_of(part.space))).dtype
