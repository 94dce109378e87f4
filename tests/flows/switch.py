"""A switch in user space between machines that are network namespaces: what it passes on may be late, slow or lost.

    python -m tests.flows.switch DEVICE NAMESPACE…

In flow: frames from a TAP device `DEVICE` in each namespace; on stdin, a line each, commands about machines by number:

    delay MS        every frame is that late, in each direction
    rate I MBIT     what goes to machine I is no faster (0: as fast as it goes); half a second of it may queue
    cut I J         what I sends to J vanishes; `heal I J` ends that

Out flow: the frames, each to the machine it is for; on stdout `ok` after the start and each command. The kernels of
many machines have no delays of their own (sch_netem).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

__all__ = ["Switch", "main"]

_TUNSETIFF, _TAP_NO_PI, _NEWNET = 0x400454CA, 0x0002 | 0x1000, 0x40000000
_LARGEST = 65_536
_QUEUE_SECONDS = 0.5
_BURST = 64
"""Frames taken from one machine before the next has its turn."""


class Switch:
    """Decides when and where a frame goes. Pure: `now` is passed in."""

    def __init__(self, machines: int) -> None:
        self._machines = range(machines)
        self._delay = 0.0
        self._rate = dict.fromkeys(self._machines, 0.0)
        self._free = dict.fromkeys(self._machines, 0.0)
        self._cut: set[tuple[int, int]] = set()
        self._known: dict[bytes, int] = {}
        self._late: dict[int, deque[tuple[float, bytes]]] = {machine: deque() for machine in self._machines}

    def command(self, line: str) -> None:
        """Does what a line says; ValueError if it says nothing that is known."""
        match line.split():
            case ["delay", delay]:
                self._delay = float(delay) / 1e3
            case ["rate", machine, rate]:
                self._rate[int(machine)] = float(rate) * 1e6 / 8
            case ["cut", one, other]:
                self._cut.add((int(one), int(other)))
            case ["heal", one, other]:
                self._cut.discard((int(one), int(other)))
            case _:
                raise ValueError(f"unknown command {line!r}")

    def take(self, source: int, frame: bytes, now: float) -> None:
        """A machine sent a frame: to whom it is for, or to all others if that is not known."""
        self._known[frame[6:12]] = source
        found = self._known.get(frame[:6])
        for target in self._machines if found is None else (found,):
            if target != source and (source, target) not in self._cut:
                self._queue(target, frame, now)

    def due(self, now: float) -> list[tuple[int, bytes]]:
        """(machine, frame) whose time has come."""
        going = []
        for machine, queue in self._late.items():
            while queue and queue[0][0] <= now:
                going.append((machine, queue.popleft()[1]))
        return going

    def wait(self, now: float) -> float | None:
        """Seconds until the next frame is due; None: nothing waits."""
        heads = [queue[0][0] for queue in self._late.values() if queue]
        return max(0.0, min(heads) - now) if heads else None

    def _queue(self, target: int, frame: bytes, now: float) -> None:
        start = max(now, self._free[target])
        if start - now > _QUEUE_SECONDS:
            return
        if rate := self._rate[target]:
            start += len(frame) / rate
            self._free[target] = start
        queue, when = self._late[target], start + self._delay
        queue.append((max(when, queue[-1][0]) if queue else when, frame))


def main() -> None:
    """Until stdin ends."""
    name, *namespaces = sys.argv[1:]
    taps = [_tap(name, namespace) for namespace in namespaces]
    switch = Switch(len(taps))
    poll = select.poll()
    for handle in (*taps, sys.stdin.fileno()):
        poll.register(handle, select.POLLIN)
    _say("ok")
    while True:
        wait = switch.wait(time.monotonic())
        for handle, _ in poll.poll(None if wait is None else wait * 1e3):
            if handle not in taps:
                line = sys.stdin.readline()
                if not line:
                    return
                switch.command(line)
                _say("ok")
                continue
            for _ in range(_BURST):
                try:
                    frame = os.read(handle, _LARGEST)
                except BlockingIOError:
                    break
                switch.take(taps.index(handle), frame, time.monotonic())
        for machine, frame in switch.due(time.monotonic()):
            with suppress(OSError):  # a machine whose device is down hears nothing, as with any switch
                os.write(taps[machine], frame)


def _tap(name: str, namespace: str) -> int:
    """A TAP device in a namespace, opened from this one."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        _enter(libc, there)
        handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_NO_PI))
        _enter(libc, here)
    finally:
        os.close(here)
        os.close(there)
    return handle


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
