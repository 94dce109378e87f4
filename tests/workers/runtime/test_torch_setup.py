"""Arithmetic is what a run asks for."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.runtime.torch_setup import Precision, configure_torch

HOST = torch.device("cpu")


@pytest.mark.parametrize(("precision", "product"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_products_are_rounded_where_that_is_asked_for_and_nowhere_else(precision: str, product: torch.dtype) -> None:
    x = torch.randn(3, 3)
    with Precision(parse_run({"precision": precision}).precision).autocast(HOST):
        assert (x @ x).dtype == product
        assert (x + x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_what_is_float32_is_not_rounded_by_cudnn_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    configure_torch()
    assert torch.backends.cudnn.allow_tf32 is False


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_memory_of_a_large_tensor_is_used_again_without_the_kernel() -> None:
    configure_torch()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(8):
            torch.ones(2**24)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()  # the heap grows as far as it has to
    assert faults() < 8 * 2**24 * 4 / 2**21  # a page of 2 MiB each, where there are such


def test_lockstep_knows_one_precision() -> None:
    with raises(ConfigurationError, "lockstep_setting_forbidden", setting="precision: bfloat16"):
        parse_run({"schedule": "lockstep", "precision": "bfloat16"})
