"""Where a learner computes, on machines with and without GPUs."""

from __future__ import annotations

import pytest
import torch

from protocol.config.run import Run
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.learning.device import choose_device


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool = False) -> None:
    """One with so many GPUs, or Apple's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(("gpus", "mps", "chosen"), [(2, True, "cuda:0"), (0, True, "mps"), (0, False, "cpu")])
def test_cuda_comes_before_mps_before_the_processor_E9(
    monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool, chosen: str
) -> None:
    machine(monkeypatch, gpus, mps)
    assert [str(choose_device(Run(), index)) for index in range(3)] == [chosen] * 3


def test_learners_share_the_first_gpu_or_are_spread_over_all_in_turn_E9(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 3)
    spread = Run(device_per_agent=True)
    assert [choose_device(Run(), index).index for index in range(5)] == [0] * 5
    assert [choose_device(spread, index).index for index in range(5)] == [0, 1, 2, 0, 1]


def test_a_device_that_is_asked_for_is_taken_or_refused_E9(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1, mps=True)
    assert str(choose_device(Run(device="cpu"), 0)) == "cpu"
    assert str(choose_device(Run(device="mps"), 0)) == "mps"
    machine(monkeypatch, 0)
    with raises(ConfigurationError, "device_not_available", value="cuda", key="device"):
        choose_device(Run(device="cuda"), 0)
