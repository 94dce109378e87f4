"""A library's file reaches who does not see the run's folder: in parts, whole, and what its name says (J7)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from protocol.control import file_fetch
from protocol.control.file_fetch import LibraryClient
from protocol.control.server import ControlServer
from protocol.errors import Refused, Timeout
from protocol.messages.core import PART_BYTES, Fetch, Refusal, Welcome
from protocol.transport.sockets import Ports, open_context
from tests.faults import raises, words_in
from workers.league import policy_pool
from workers.league.policy_pool import serve_chunk

TOKEN = "00112233445566ff"
WELCOME = Welcome(
    run="run1", name="actor-0", incarnation=2, config="{}", world="{}", policies=[], lease=5.0, heartbeat=1.0
)
DATA = bytes(range(256)) * (10 * PART_BYTES // 1024)
"""Two parts and a half."""
NOBODY = "0" * 32


@contextmanager
def coordinator(
    folder: Path, members: dict[str, str], takes: float = 0.0, asked: list[int] | None = None
) -> Iterator[str]:
    """The address of one that lends; whoever has TOKEN takes part. Each answer `takes` so many seconds, and none is
    left out; `asked`: offsets."""
    context, ending = open_context("", "coordinator"), threading.Event()
    ports = Ports(context, "127.0.0.1", 0)
    address = ports.bind({0: zmq.ROUTER})[0]

    def serve() -> None:
        server = ControlServer(ports.sockets[0])
        while not ending.is_set():
            for peer, message in server.requests(20, lambda _name, token, _incarnation: token == TOKEN):
                assert isinstance(message, Fetch)
                if asked is not None:
                    asked.append(message.offset)
                ending.wait(takes)
                server.answer(peer, *serve_chunk(folder, members, message))

    thread = threading.Thread(target=serve, name="lender")
    thread.start()
    try:
        yield address
    finally:
        ending.set()
        thread.join(60)
        ports.close()
        context.destroy(linger=0)


@contextmanager
def client(address: str, token: str = TOKEN) -> Iterator[LibraryClient]:
    context = open_context("", "actor")
    made = LibraryClient(context, address, WELCOME, token)
    try:
        yield made
    finally:
        made.close()
        context.destroy(linger=0)


def test_a_file_of_several_parts_arrives_whole_and_another_than_the_members_is_refused_J7(tmp_path: Path) -> None:
    entry = policy_pool.add(tmp_path, "main", 3, DATA)
    other = policy_pool.add(tmp_path, "main", 4, b"another")
    members = {entry.name: entry.checksum, other.name: other.checksum}
    other.path(tmp_path).chmod(0o600)
    other.path(tmp_path).write_bytes(b"changed")
    never = threading.Event()
    with coordinator(tmp_path, members) as address, client(address) as mine:
        assert mine.fetch(entry.name, entry.checksum, 60, never) == DATA
        with raises(Refused, "library_file_checksum_wrong", member="main/4"):
            mine.fetch(other.name, other.checksum, 60, never)
        with raises(Refused, "library_member_missing") as told:
            mine.fetch(entry.name, NOBODY, 60, never)
        assert {"main/3", "main/4", NOBODY} <= words_in(str(told.value))
        other.path(tmp_path).unlink()
        with raises(Refused, "library_file_unreadable") as told:
            mine.fetch(other.name, other.checksum, 60, never)
        assert os.strerror(errno.ENOENT) in str(told.value)


def test_on_a_slow_way_answers_that_nobody_waits_for_do_not_pile_up_J7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_fetch, "_AGAIN", 0.1)
    entry, asked = policy_pool.add(tmp_path, "main", 0, 2 * DATA), list[int]()
    with coordinator(tmp_path, {entry.name: entry.checksum}, 0.2, asked) as address, client(address) as mine:
        assert mine.fetch(entry.name, entry.checksum, 60, threading.Event()) == 2 * DATA
    assert sorted({*asked}) == [number * PART_BYTES for number in range(5)]
    assert len(asked) < 30  # and not twice as many for each next part


def test_a_part_that_takes_long_is_asked_for_ever_more_seldom_J7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, send = list[int](), LibraryClient._send

    def counted(self: LibraryClient, wanted: Fetch) -> bool:
        sent.append(wanted.offset)
        return send(self, wanted)

    monkeypatch.setattr(file_fetch, "_AGAIN", 0.05)
    monkeypatch.setattr(LibraryClient, "_send", counted)
    entry = policy_pool.add(tmp_path, "main", 0, b"weights")
    with coordinator(tmp_path, {entry.name: entry.checksum}, 1.5) as address, client(address) as mine:
        assert mine.fetch(entry.name, entry.checksum, 60, threading.Event()) == b"weights"
    assert len(sent) < 9  # and not each tenth of a second


def test_who_takes_no_part_gets_nothing_and_waits_no_longer_than_it_was_told(tmp_path: Path) -> None:
    entry = policy_pool.add(tmp_path, "main", 0, b"weights")
    with coordinator(tmp_path, {entry.name: entry.checksum}) as address:
        silent = {"peer": address, "member": "main/0"}
        with client(address, "stranger") as theirs, raises(Timeout, "library_part_silent", **silent):
            theirs.fetch(entry.name, entry.checksum, 0.3, threading.Event())
        told = threading.Event()
        told.set()
        with client(address) as mine, raises(Timeout, "library_part_silent", **silent):
            mine.fetch(entry.name, entry.checksum, 60, told)


def test_a_coordinator_that_has_not_looked_yet_says_not_yet_and_no_name_leaves_the_library(tmp_path: Path) -> None:
    wanted = Fetch(name="actor-0", token=TOKEN, incarnation=1, member="../state/0", checksum=NOBODY, offset=0)
    refusal = serve_chunk(tmp_path, {}, wanted)[0]
    assert isinstance(refusal, Refusal)
    assert refusal.retry
    refusal = serve_chunk(tmp_path, {"main/0": NOBODY}, wanted)[0]
    assert isinstance(refusal, Refusal)
    assert not refusal.retry
    entry = policy_pool.add(tmp_path, "main", 0, b"weights")
    beyond = wanted.model_copy(update={"member": "main/0", "checksum": entry.checksum, "offset": 2**62})
    assert serve_chunk(tmp_path, {"main/0": entry.checksum}, beyond)[1:] == (b"",)
