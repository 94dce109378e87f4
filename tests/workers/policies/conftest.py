"""Every test here draws the same random tensors whenever it runs."""

from __future__ import annotations

import pytest
import torch

from tests.trial import Settings


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(Settings.given().seed)
