"""Where a way begins: a clean clone, a terminal in it, a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme import clone, environment
from tests.ways.terminal import Terminal, terminal


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    """What a user has after `git clone`."""
    clone(tmp_path / "rookery")
    (tmp_path / "home").mkdir()
    return tmp_path / "rookery"


@pytest.fixture
def variables(cloned: Path) -> dict[str, str]:
    """What his shell has set after `. .venv/bin/activate`."""
    return environment(cloned.parent / "home", cloned)


@pytest.fixture
def shell(cloned: Path, variables: dict[str, str]) -> Iterator[Terminal]:
    """A terminal of 100 columns in the clone."""
    with terminal(cloned, variables) as found:
        yield found
