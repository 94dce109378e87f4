"""Sleeping until a word of shared memory changes, in any process that maps it: the kernel's cheapest notification.

Linux only; elsewhere `AVAILABLE` is False, and who would sleep here waits for a message instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

_SYSCALL = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine())
AVAILABLE = sys.platform == "linux" and sys.byteorder == "little" and _SYSCALL is not None
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_EXPECTED = (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def sleep(address: int, seen: int, seconds: float) -> None:
    """Sleeps while the 32-bit word at `address` is `seen`, until `wake` or for `seconds`; may return early."""
    whole = int(seconds)
    _call(address, _WAIT, seen, ctypes.byref(_Timespec(whole, int((seconds - whole) * 1e9))))


def wake(address: int) -> None:
    """Wakes all that sleep on the word at `address`, which was changed before."""
    _call(address, _WAKE, _ALL, None)


def _call(address: int, operation: int, value: int, timeout: object) -> None:
    result = _syscall(_SYSCALL, ctypes.c_void_p(address), operation, ctypes.c_uint32(value), timeout, None, 0)
    if result < 0 and (fault := ctypes.get_errno()) not in _EXPECTED:
        raise OSError(fault, os.strerror(fault), "futex")


if AVAILABLE:
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _syscall.restype = ctypes.c_long
