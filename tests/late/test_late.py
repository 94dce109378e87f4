"""The device that is not there does what is asked of it, no sooner than it must, and refuses what CUDA refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.late.cuda import late_cuda
from tests.late.streams import Machine

THERE = torch.device("cuda")


@pytest.fixture
def late() -> Iterator[Machine]:
    with late_cuda() as machine:
        yield machine


def test_what_is_computed_there_is_what_is_computed_here_gradients_included(late: Machine) -> None:
    torch.manual_seed(0)
    here, x = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)), torch.randn(7, 5)
    there, y = torch.nn.Sequential(*[torch.nn.Linear(*pair) for pair in ((5, 4), (4, 1))]), x.to(THERE)
    there.insert(1, torch.nn.Tanh())
    there.load_state_dict(here.state_dict())
    there.to(THERE)
    for module, rows in ((here, x), (there, y)):
        optimizer = torch.optim.Adam(module.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            module(rows).square().mean().backward()
            optimizer.step()
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        assert b.is_cuda
        assert b.device.type == "cuda"
        assert torch.equal(a, b.cpu())


def test_work_is_done_when_it_is_waited_for_and_only_what_must_be(late: Machine) -> None:
    host = torch.zeros(3).pin_memory()
    other = torch.cuda.Stream(THERE)
    x = torch.ones(3, device=THERE)
    host.copy_(x, non_blocking=True)
    with torch.cuda.stream(other):
        torch.zeros(3, device=THERE).add_(1)
    assert host.tolist() == [0, 0, 0]
    torch.cuda.current_stream(THERE).synchronize()
    assert host.tolist() == [1, 1, 1]
    assert other.done < other.asked  # type: ignore[attr-defined] # of this device


def test_a_stream_that_does_not_wait_for_another_reads_what_was_there_before(late: Machine) -> None:
    x, side = torch.zeros(2, device=THERE), torch.cuda.Stream(THERE)
    torch.cuda.synchronize(THERE)
    x.fill_(5)
    with torch.cuda.stream(side):
        assert x.tolist() == [0, 0]
    side.wait_stream(torch.cuda.current_stream(THERE))
    with torch.cuda.stream(side):
        assert x.tolist() == [5, 5]


def test_what_leaves_pinned_memory_is_what_lies_there_when_it_leaves_and_else_at_once(late: Machine) -> None:
    pinned, plain = torch.ones(2).pin_memory(), torch.ones(2)
    assert pinned.is_pinned()
    assert not plain.is_pinned()
    sent = [one.to(THERE, non_blocking=True) for one in (pinned, plain)]
    pinned.fill_(7)
    plain.fill_(7)
    assert [one.tolist() for one in sent] == [[7, 7], [1, 1]]
    back = sent[0].to("cpu", non_blocking=True)
    assert back.is_pinned()
    torch.cuda.synchronize(THERE)
    assert back.tolist() == [7, 7]
    sent = [pinned.to(THERE)]
    pinned.fill_(8)
    assert sent[0].tolist() == [7, 7], "who waits has it"


def test_memory_that_is_given_back_while_another_stream_reads_it_is_another_s(late: Machine) -> None:
    def read(recorded: bool) -> list[float]:
        x, host = torch.ones(2, device=THERE), torch.zeros(2).pin_memory()
        side = torch.cuda.Stream(THERE)
        side.wait_stream(torch.cuda.current_stream(THERE))
        with torch.cuda.stream(side):
            host.copy_(x, non_blocking=True)
        if recorded:
            x.record_stream(side)
        del x
        torch.cuda.current_stream(THERE).synchronize()
        side.synchronize()
        return host.tolist()

    assert read(recorded=True) == [1, 1]
    assert read(recorded=False) != [1, 1]


def test_giving_memory_back_makes_no_stream_wait(late: Machine) -> None:
    """What was recorded for another stream is only not given to anybody yet."""
    x, y, host = torch.ones(2, device=THERE), torch.ones(2, device=THERE), torch.zeros(2).pin_memory()
    side = torch.cuda.Stream(THERE)
    side.wait_stream(torch.cuda.current_stream(THERE))
    with torch.cuda.stream(side):
        host.copy_(y, non_blocking=True)
    x.record_stream(side)
    del x
    y.fill_(7)
    torch.cuda.current_stream(THERE).synchronize()
    side.synchronize()
    assert host.tolist() == [7, 7]


def test_a_graph_does_again_what_the_device_was_asked_and_nothing_of_the_host(late: Machine) -> None:
    x, total, asked, graph = torch.zeros(2, device=THERE), torch.zeros(2, device=THERE), [0], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        asked[0] += 1
        total.add_(x * asked[0])
    assert total.tolist() == [0, 0]
    for value in (1.0, 10.0):
        x.fill_(value)
        asked[0] += 1
        graph.replay()
    assert total.tolist() == [11, 11]


@contextmanager
def refused_in_a_capture(reason: str) -> Iterator[None]:
    """What ends the capture says that it failed; why is in what came before that."""
    with pytest.raises(RuntimeError, match="previous error during capture") as failed:
        yield
    assert reason in str(failed.value.__context__)


def test_while_a_graph_is_captured_the_host_may_see_nothing(late: Machine) -> None:
    x, plain = torch.ones(2, device=THERE), torch.ones(2)
    for seeing in (
        lambda: x.sum().item(),
        lambda: x.nonzero(),
        lambda: x[x > 0],
        lambda: x.cpu(),
        lambda: x.copy_(plain, non_blocking=True),
        lambda: torch.tensor([1.0], device=THERE),
        lambda: torch.repeat_interleave(x, x.long()),
        plain.pin_memory,
        lambda: torch.cuda.synchronize(THERE),
    ):
        graph = torch.cuda.graph(torch.cuda.CUDAGraph())
        with refused_in_a_capture("not permitted when stream is capturing"), graph:
            seeing()
    assert x.tolist() == [1, 1]


def test_streams_of_a_graph_begin_after_its_own_and_end_before_it(late: Machine) -> None:
    x, side = torch.ones(2, device=THERE), torch.cuda.Stream(THERE)

    def leave() -> None:
        side.wait_stream(torch.cuda.current_stream(THERE))
        with torch.cuda.stream(side):
            x.add_(1)

    with pytest.raises(RuntimeError, match="unjoined work"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        leave()
    aside, graph = torch.cuda.Stream(THERE), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        leave()
        aside.wait_stream(side)
        torch.cuda.current_stream(THERE).wait_stream(aside)
    graph.replay()
    assert x.tolist() == [2, 2]
    stray = torch.cuda.Stream(THERE)
    with torch.cuda.stream(stray):
        x.add_(1)
    with refused_in_a_capture("uncaptured work"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.cuda.current_stream(THERE).wait_stream(stray)


def test_operands_are_on_one_device(late: Machine) -> None:
    x = torch.ones(2, device=THERE)
    assert (x + torch.tensor(1.0)).tolist() == [2, 2], "one number may be anywhere"
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(2)
    for given in (
        lambda: torch.stack([torch.tensor(1.0), x[0]]),
        lambda: x.index_select(0, torch.tensor(0)),
        lambda: torch.tensor(1.0).add_(x[0]),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            given()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, generator=torch.Generator(), device=THERE)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        x.normal_(generator=torch.Generator())
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()


def test_other_threads_have_it_too_and_afterwards_it_is_gone() -> None:
    found: list[list[float]] = []
    with late_cuda():
        thread = threading.Thread(target=lambda: found.append(torch.ones(2, device=THERE).tolist()))
        thread.start()
        thread.join()
    assert found == [[1, 1]]
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            torch.ones(2, device=THERE)
