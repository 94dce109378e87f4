"""The switch of the tests: when and where it delivers what it is given."""

from __future__ import annotations

from tests.flows.switch import Switch

ONE, OTHER = b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02"
EVERYBODY = b"\xff" * 6


def frame(target: bytes, source: bytes, size: int = 100) -> bytes:
    """One of that size."""
    return (target + source).ljust(size, b"\0")


def test_a_frame_goes_to_whom_it_is_for_after_the_delay_and_to_all_others_while_nobody_is_known() -> None:
    """Addresses are learned from what is sent."""
    switch = Switch(3)
    switch.command("delay 20")
    switch.take(0, frame(EVERYBODY, ONE), 1.0)
    assert switch.due(1.019) == []
    assert [machine for machine, _ in switch.due(1.021)] == [1, 2]
    switch.take(1, frame(ONE, OTHER), 2.0)
    assert switch.wait(2.0) == 2.02 - 2.0
    assert [machine for machine, _ in switch.due(3.0)] == [0]


def test_a_cut_is_one_way_and_a_rate_spreads_frames_in_time() -> None:
    """1000 bytes at 1 Mbit/s are 8 ms; what would wait for longer than half a second is dropped."""
    switch = Switch(2)
    switch.take(0, frame(EVERYBODY, ONE), 0.0)
    switch.take(1, frame(ONE, OTHER), 0.0)
    switch.due(1.0)
    switch.command("cut 0 1")
    switch.command("rate 0 1")
    switch.take(0, frame(OTHER, ONE), 1.0)
    for _ in range(100):
        switch.take(1, frame(ONE, OTHER, 1000), 1.0)
    assert len(switch.due(1.0801)) == 10
    assert {machine for machine, _ in switch.due(9.0)} == {0}
    switch.take(1, frame(ONE, OTHER), 9.0)
    switch.command("heal 0 1")
    switch.take(0, frame(OTHER, ONE), 9.0)
    assert sorted(machine for machine, _ in switch.due(9.1)) == [0, 1]
