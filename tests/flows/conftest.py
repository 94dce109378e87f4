"""What every flow test gets: commands that are forked, not imported anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows import runs
from tests.forge import forging


@pytest.fixture(scope="package", autouse=True)
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for each process of the tests, as long as it has tests from here."""
    with forging(runs.environment(), tmp_path_factory.mktemp("forge") / "forge.out") as runs.forge:
        yield
    runs.forge = None
