"""Arithmetic is set up as a run asks."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from protocol.config import parse_run
from protocol.errors import ConfigurationError
from workers import numerics


@pytest.mark.parametrize(("precision", "told"), [("bfloat16", "medium"), ("float32", "highest")])
def test_factors_are_rounded_where_that_is_asked_for(precision: Literal["float32", "bfloat16"], told: str) -> None:
    try:
        numerics.multiply_in(parse_run({"precision": precision}).precision)
        assert torch.get_float32_matmul_precision() == told
    finally:
        numerics.multiply_in("float32")


def test_lockstep_knows_one_precision() -> None:
    with pytest.raises(ConfigurationError, match="schedule is lockstep and there is precision: bfloat16"):
        parse_run({"schedule": "lockstep", "precision": "bfloat16"})
