"""A peer that fills a bound socket's queue and breaks its connection does not end the process that has the socket."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from contextlib import suppress

from tests.tools import ROOT
from tests.waiting import PATIENCE

BOUND = """
import time
import zmq
from protocol.transport.sockets import Ports
ports = Ports(zmq.Context(1), "127.0.0.1", 0)
addresses = ports.bind({0: zmq.ROUTER, 1: zmq.PULL, 2: zmq.XPUB}, waiting=10)
print(addresses[0].rpartition(":")[2], flush=True)
input()
time.sleep(2.5)  # two heartbeats, if they sent any
print("alive", flush=True)
"""
PEERS = (b"DEALER", b"PUSH", b"SUB")
GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL".ljust(64, b"\0")


def ready(kind: bytes) -> bytes:
    """ZMTP 3.0 (RFC 23): the command that ends the handshake of a socket of type `kind`."""
    words = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return bytes([4, len(words)]) + words


def fill_and_reset(port: int, peer: bytes) -> None:
    """Sends until nothing more is taken in."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as flood:
        flood.sendall(GREETING + ready(peer))
        answered = b""
        while b"Socket-Type" not in answered:  # what comes before its own answer is no message yet
            answered += flood.recv(100)
        flood.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        flood.settimeout(1.0)
        with suppress(TimeoutError):
            for number in range(2**20):
                flood.sendall((b"\0\5\1" + number.to_bytes(4, "big")) * 1_000)  # for XPUB a subscription


def test_a_reset_with_a_full_queue_ends_nobody() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BOUND], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        base = int(process.stdout.readline())
        for offset, peer in enumerate(PEERS):
            fill_and_reset(base + offset, peer)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "alive\n"
        process.kill()
