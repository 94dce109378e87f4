"""Products in bfloat16 are exact enough to learn by."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.configuration import load
from tests.learning.test_recurrent import learn


@pytest.mark.slow
def test_cartpole_is_learnt_with_rounded_products(tmp_path: Path) -> None:
    """A random player falls after 22 steps."""
    run = load("cartpole", steps=60_000, device="cpu", precision="bfloat16")
    assert learn(run, tmp_path) > 60
