"""The threat model of the specification: each threat names a test, and what no other test shows is shown here."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import zmq

from protocol.transport.curve import CurveContext, Keys, new_keys
from tests.protocol.test_specification import table_after
from tests.tools import ROOT

SECRET = b"the reward was forty-two" * 40


@contextmanager
def man_in_the_middle(port: int, spoil: bool) -> Iterator[tuple[int, bytearray]]:
    """(port, what passed by): forwards everything, with one bit of each long piece from the client changed if told."""
    heard = bytearray()
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]

    def pass_on(source: socket.socket, target: socket.socket, changed: bool) -> None:
        with suppress(OSError):
            while piece := bytearray(source.recv(65_536)):
                heard.extend(piece)
                if changed and len(piece) > len(SECRET):
                    piece[len(piece) // 2] ^= 1
                target.sendall(piece)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                ends.extend((client, server))
                threading.Thread(target=pass_on, args=(client, server, spoil), daemon=True).start()
                threading.Thread(target=pass_on, args=(server, client, False), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def sent_through(folder: Path | None, spoil: bool, patience: int) -> tuple[bytes | None, bytearray]:
    """What arrives of SECRET, and what somebody between the two heard."""
    guarded = CurveContext.make(Keys.load(folder, "learner")) if folder else None
    server_context, context = guarded or zmq.Context(), zmq.Context()
    server, client = server_context.socket(zmq.PULL), context.socket(zmq.PUSH)
    try:
        if folder is not None:
            Keys.load(folder, "learner").serve(server, "experience")
            Keys.load(folder, "actor").join(client, "learner")
        client.setsockopt(zmq.LINGER, 0)
        server.setsockopt(zmq.RCVTIMEO, patience)  # a poll is woken by a message that then fails to be decrypted
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with man_in_the_middle(port, spoil) as (door, heard):
            client.connect(f"tcp://127.0.0.1:{door}")
            client.send(SECRET)
            with suppress(zmq.Again):
                return server.recv(), heard
            return None, heard
    finally:
        server.close(linger=0)
        client.close(linger=0)
        context.destroy(linger=0)
        server_context.destroy(linger=0)


def test_what_travels_cannot_be_read_and_what_is_changed_does_not_arrive(tmp_path: Path) -> None:
    """With keys; without them both are possible, which shows that this test can fail."""
    new_keys(tmp_path / "keys")
    arrived, heard = sent_through(tmp_path / "keys", spoil=False, patience=20_000)
    assert arrived == SECRET
    assert len(heard) > len(SECRET)
    assert b"forty-two" not in heard
    arrived, heard = sent_through(tmp_path / "keys", spoil=True, patience=1_000)
    assert len(heard) > len(SECRET)
    assert arrived is None
    arrived, heard = sent_through(None, spoil=True, patience=20_000)
    assert b"forty-two" in heard
    assert arrived is not None
    assert arrived != SECRET


def test_every_threat_names_a_test_that_exists() -> None:
    rows = table_after("## Threats", which=1)
    written = set(re.findall(r"^def (test_\w+)", "".join(p.read_text() for p in (ROOT / "tests").rglob("*.py")), re.M))
    assert len(rows) > 10
    for threat, _, shown in rows:
        assert set(re.findall(r"`(\w+)`", shown)) <= written, threat
        assert "`test_" in shown, threat
