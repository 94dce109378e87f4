"""Where a learner computes, and where an actor's policies do."""

from __future__ import annotations

import torch

from protocol.config.run import Run
from protocol.errors import ConfigurationError


def choose_device(run: Run, index: int, spread: bool = False) -> torch.device:
    """The device of learner number `index`: CUDA before MPS before the CPU; with `device_per_agent` or `spread`
    learners are spread over all GPUs, otherwise they share the first. ConfigurationError if the wanted device is not
    there."""
    wanted = run.device
    if wanted in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device(f"cuda:{index % torch.cuda.device_count() if spread or run.device_per_agent else 0}")
    if wanted in ("auto", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    if wanted in ("cuda", "mps"):
        raise ConfigurationError("device_not_available", value=wanted, key="device")
    return torch.device("cpu")


def acting_device(run: Run, index: int) -> torch.device | None:
    """The GPU on which policies of actor number `index` act, where that is asked for, spread as learners are.
    ConfigurationError if there is none."""
    if run.act_device == "cpu":
        return None
    if not torch.cuda.is_available():
        raise ConfigurationError("acting_device_not_available", key="act_device", value="cuda")
    return torch.device(f"cuda:{index % torch.cuda.device_count() if run.device_per_agent else 0}")
