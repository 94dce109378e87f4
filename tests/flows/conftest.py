"""What every flow test gets: commands that are forked, not imported anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows import runs
from tests.forge import Forge


@pytest.fixture(scope="package", autouse=True)
def forked(forge: Forge | None) -> Iterator[None]:
    """By `runs`."""
    runs.forge = forge
    yield
    runs.forge = None
