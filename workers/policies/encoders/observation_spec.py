"""What an encoder is built for: the leaves of an observation, each with its own shape and dtype.

Legend: `N` rows, `F` stacked frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

_FEW = 256
"""Whole numbers of an example, where there is no other bound."""


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One leaf: a tensor [N, *shape] of `dtype`. Stacked frames are channels of an image, and lie one behind the other
    in the last dimension of anything else, newest last."""

    path: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float | None = None
    """Least number; None: unbounded, or not the same for all elements."""
    high: float | None = None
    """Greatest number, likewise."""
    choices: tuple[tuple[int, int], ...] = ()
    """(first, how many) values of each element in C order; empty where elements are numbers. Text is the places of its
    characters in their set, from 1, and 0 behind the last."""
    is_image: bool = False
    """Bytes or bits of two dimensions, or of three: with the channels last, or first where they are the fewest."""
    holds_pixels: bool = False
    """An image of bytes from 0 to 255, or of bits: read by convolutions unless something else is said."""
    channels_first: bool = False
    """Whether it is an image [channels, height, width]."""

    @property
    def n(self) -> int | None:
        """One more than the greatest value of a choice; None where elements are numbers."""
        return max((first + count for first, count in self.choices), default=None)

    @property
    def channels(self) -> int:
        """Of an image."""
        return 1 if len(self.shape) == 2 else self.shape[0 if self.channels_first else 2]

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = self.shape[-2:] if self.channels_first else self.shape[:2]
        return height, width

    @property
    def scale(self) -> float:
        """What an image is divided by: bytes by the greatest one."""
        return self.high if self.dtype == torch.uint8 and self.high else 1.0

    def image(self, leaf: Tensor, scale: float) -> Tensor:
        """[N, *shape] -> [N, channels, height, width] float32, divided by `scale`; channels lie together in memory, as
        convolutions read them fastest."""
        if len(self.shape) == 2:
            leaf = leaf[:, None]
        elif not self.channels_first:
            leaf = leaf.permute(0, 3, 1, 2)
        return leaf.to(torch.float32, memory_format=torch.channels_last) / scale

    def example(self, rows: int) -> Tensor:
        """Any values that it may have, [rows, *shape], by torch's own random numbers."""
        if self.choices:
            first, count = (torch.tensor(part).view(self.shape) for part in zip(*self.choices, strict=True))
            drawn = torch.rand(rows, *self.shape, dtype=torch.float64)
            return (first + (drawn * count).long()).to(self.dtype)
        if self.dtype == torch.bool:
            return torch.rand(rows, *self.shape) < 0.5
        if self.dtype.is_floating_point:
            low, high = -inf if self.low is None else self.low, inf if self.high is None else self.high
            return torch.randn(rows, *self.shape).clamp(low, high).to(self.dtype)
        low = int(self.low or 0)
        high = low + _FEW if self.high is None else min(int(self.high) + 1, low + _FEW)
        return torch.randint(low, high, (rows, *self.shape)).to(self.dtype)


class ObservationSpec(Mapping[str, LeafSpec]):
    """The leaves by their paths, as `observation["image"]`. Where an observation is one leaf on its own its attributes
    are this object's as well, and an encoder is given the tensor itself; otherwise a tensor for each path."""

    def __init__(self, leaves: Mapping[str, LeafSpec], alone: bool) -> None:
        self._leaves, self.alone = dict(leaves), alone
        """`alone`: whether an encoder is given a tensor, and not one for each leaf."""

    def __getitem__(self, path: str) -> LeafSpec:
        return self._leaves[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __str__(self) -> str:
        return "; ".join(f"{path} {list(leaf.shape)} {leaf.dtype}".replace("torch.", "") for path, leaf in self.items())

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the one leaf."""
        return self.leaf.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the one leaf."""
        return self.leaf.dtype

    @property
    def low(self) -> float | None:
        """Of the one leaf."""
        return self.leaf.low

    @property
    def high(self) -> float | None:
        """Of the one leaf."""
        return self.leaf.high

    @property
    def n(self) -> int | None:
        """Of the one leaf."""
        return self.leaf.n

    @property
    def leaf(self) -> LeafSpec:
        """The one leaf of an observation that is not nested."""
        if not self.alone:
            raise TypeError(f"this observation has several leaves; ask for one of them by its path: {', '.join(self)}")
        return next(iter(self._leaves.values()))

    def part(self, *paths: str) -> ObservationSpec:
        """These leaves; a single one is alone."""
        return ObservationSpec({path: self._leaves[path] for path in paths}, alone=len(paths) == 1)

    def given(self, leaves: Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
        """What an encoder is given of these leaves: the one tensor, or each of its own by its path."""
        return leaves[self.leaf.path] if self.alone else {path: leaves[path] for path in self}
