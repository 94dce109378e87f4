"""What is sent to a device arrives as it was, whatever is done beside it."""

from __future__ import annotations

import torch

from workers.learning.buffers.device_transfer import DeviceTransfer


def test_what_is_sent_arrives_and_what_comes_after_it_does_not_overtake_it_L8(cuda: torch.device) -> None:
    """One memory in the host for all batches, and none on the device is given back before it was read."""
    carrier, found = DeviceTransfer(cuda), torch.zeros(5, 3, device=cuda)
    host = carrier.pin(torch.zeros(3))
    assert host.is_pinned()
    sent = {}
    for number in range(5):
        carrier.wait()
        host.fill_(number)
        under_way = carrier.send({"column": host})
        carrier.synchronize(under_way)
        sent = under_way
        found[number].copy_(sent["column"])
    assert found.tolist() == [[number] * 3 for number in range(5)]


def test_memory_that_has_left_may_be_written_again_while_what_was_sent_is_computed_with_L8(cuda: torch.device) -> None:
    carrier, total = DeviceTransfer(cuda), torch.zeros(3, device=cuda)
    host = carrier.pin(torch.ones(3))
    first = carrier.send({"column": host})
    carrier.wait()
    host.fill_(10)
    second = carrier.send({"column": host})
    carrier.synchronize(first)
    total.add_(first.pop("column"))
    carrier.wait()
    host.fill_(100)
    carrier.synchronize(second)
    total.add_(second.pop("column"))
    assert total.tolist() == [11, 11, 11]


def test_what_was_copied_may_be_written_again_at_once_and_be_of_another_size_L8(cuda: torch.device) -> None:
    carrier, found = DeviceTransfer(cuda), []
    for number in range(4):
        host = torch.full((3 + number // 2,), float(number))
        sent = carrier.send_copies({"column": host})
        host.fill_(-1)
        carrier.synchronize(sent)
        found.append(sent["column"] + 0)
    assert [one.tolist() for one in found] == [[0] * 3, [1] * 3, [2] * 4, [3] * 4]


def test_without_a_gpu_tensors_are_there_at_once() -> None:
    carrier = DeviceTransfer(torch.device("cpu"))
    host = carrier.pin(torch.ones(3))
    sent = carrier.send({"column": host})
    carrier.synchronize(sent)
    carrier.wait()
    assert not carrier.overlaps
    assert sent["column"].tolist() == [1, 1, 1]
