"""Fields that travel compressed (zstd), where a network is slower than a processor. Off unless a policy asks for it.

In flow: the bytes of one field of a message. Out flow: the same bytes, fewer; and back, never more than were announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.errors import ConfigurationError, WireError
from protocol.experience.layout import Layout

try:
    import zstandard
except ImportError:  # an optional package: `check_package` says so where it is asked for
    zstandard = None  # type: ignore[assignment]

_LEVEL = 1


def check_fields(fields: Sequence[str], layout: Layout) -> None:
    """ConfigurationError if `fields` are not all fields of `layout`."""
    names = [field.name for field in layout.fields]
    for name in fields:
        if name not in names:
            raise ConfigurationError("compress_field_unknown", field=name, choices=names, key="policy.compress")


def check_package(fields: Sequence[str]) -> None:
    """ConfigurationError if `fields` are to travel compressed and the package that does it is missing here."""
    if fields and zstandard is None:
        raise ConfigurationError("zstandard_missing", key="policy.compress")


def compress(data: Any) -> bytes:
    """One frame that says how long its content is."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)


def decompress(data: Any, nbytes: int) -> bytes:
    """The `nbytes` bytes in `data`; WireError for any other number of them, before a byte of it is unpacked."""
    if zstandard is None:
        raise WireError("zstandard_missing_for_field", key="policy.compress")
    try:
        announced = zstandard.frame_content_size(data)
        if announced == nbytes:
            return zstandard.ZstdDecompressor(max_window_size=2**27).decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as fault:
        raise WireError("compressed_field_damaged", reason=str(fault)) from None
    raise WireError("compressed_size_wrong", count=announced, expected=nbytes)


def unpacked(frames: Sequence[Any], names: Sequence[str], count: int, layout: Layout) -> list[Any]:
    """The frames of all fields, one each, of `count` segments; those of the fields `names` unpacked."""
    return [
        decompress(frame.buffer, layout.slot_bytes(field) * count) if field.name in names else frame
        for field, frame in zip(layout.fields, frames, strict=True)
    ]
