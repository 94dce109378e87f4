"""A GPU for those that ask for one: this machine's own, and one that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.late.cuda import begin_cuda, late_cuda
from workers.learning.buffers.segment_check import SegmentCheck


@pytest.fixture(scope="session", autouse=True)
def begun_cuda() -> None:
    """What the driver and its libraries open once in a process is no test's leak."""
    if torch.cuda.is_available():
        begin_cuda()


_HASTY = pytest.param("hasty", marks=pytest.mark.slow)


@pytest.fixture(params=["real"] if torch.cuda.is_available() else ["late", _HASTY])
def cuda(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The real one where there is one, in whose place no other can stand; else a device that does its work as late as
    it may, and one that does it at once."""
    if request.param == "real":
        yield torch.device("cuda")
        return
    with late_cuda(hasty=request.param == "hasty"):
        yield torch.device("cuda")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch is made of is believed, as if its check had overlooked something."""
    monkeypatch.setattr(SegmentCheck, "numbers", lambda *_: [])
