"""What a page shows of a turn, as plain data: what one agent observes, and the whole world where that is asked for.

In flow: a turn of a world of one copy. Out flow: numbers, text, pictures as base64.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Place, Text
from workers.environments.base import AgentTimeStep, Environment
from workers.policies.observation_encoding import channels_first


def seen_by(place: Place, present: AgentTimeStep, common: NDArray[Any] | None) -> list[dict[str, Any]]:
    """The parts of its observation that an acting policy may see, and what all agents see."""
    parts = place.parts("observation", present.observation)
    found = [
        _part(leaf.name, leaf.space, parts[leaf.name][0]) for leaf in place.observed.leaves if not leaf.evaluation_only
    ]
    if common is not None:
        found.append(_part("common", next(leaf.space for leaf in place.leaves if leaf.common), common[0]))
    return found


def whole(environment: Environment) -> dict[str, Any]:
    """The world as it is drawn; {} where it has neither a picture nor text."""
    picture = environment.render_rgb()
    if picture is not None:
        return {"picture": "data:image/png;base64," + base64.b64encode(_png(picture)).decode()}
    text = environment.render()
    return {"text": text} if text else {}


def _part(name: str, space: Any, value: NDArray[Any]) -> dict[str, Any]:
    if isinstance(space, Text):
        return {"name": name, "text": space.decode(value)}
    if value.ndim < 2:
        return {"name": name, "numbers": [round(float(one), 4) for one in np.ravel(value)]}
    numbers = value.astype(np.float64)
    square, last = value.ndim == 3 and value.shape[1] == value.shape[2], value.shape[-1] == 3
    if value.ndim == 3 and not (square or channels_first(value.shape) or last):
        numbers = np.moveaxis(numbers, 2, 0)  # planes, which are shown one beside the other
    low, high = (np.nan, np.nan) if space.span[0] is None else (np.min(space.span[0]), np.max(space.span[1]))
    if not np.isfinite([low, high]).all() or high <= low:
        low, high = numbers.min(), max(numbers.max(), numbers.min() + 1e-9)
    levels = np.clip((numbers - low) / (high - low) * 255, 0, 255).astype(np.uint8)
    return {"name": name, "shape": list(levels.shape), "levels": base64.b64encode(levels.tobytes()).decode()}


def _png(picture: NDArray[np.uint8]) -> bytes:
    """[height, width, 3] (https://www.w3.org/TR/png-3/): rows without filters, compressed quickly."""
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
