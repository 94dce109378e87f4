"""Pictures of a page by a command: all twelve, as wide as they are called."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests import pictures


@pytest.mark.slow
def test_twelve_pictures_are_as_wide_as_they_are_called(tmp_path: Path) -> None:
    found = pictures.main(tmp_path, steps=500_000)
    sizes = {path.stem: struct.unpack(">II", path.read_bytes()[16:24])[0] for path in found}
    assert sizes == {
        f"{stage}-{width}-{theme}": width
        for stage in pictures.STAGES
        for width in (420, 1_300)
        for theme in ("light", "dark")
    }
