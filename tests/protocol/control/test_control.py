"""Membership: joining, heartbeats and leaving, with a coordinator that refuses, dies, returns or forgets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from protocol import RELEASE, SCHEMA
from protocol.control import client
from protocol.control.client import ControlClient, pause
from protocol.control.heartbeat import Report
from protocol.control.server import ControlServer, check_schemas, refusal
from protocol.errors import Refused, Timeout, WireError
from protocol.messages import versioning
from protocol.messages.codec import MAX_HEADER, decode, encode
from protocol.messages.core import Ack, Heartbeat, Join, Leave, Message, Refusal, Route, Status, Welcome
from protocol.messages.versioning import Schemas
from protocol.transport.curve import new_keys
from protocol.transport.sockets import Ports, connect, open_context, poll
from tests.faults import kinds_in, raises
from tests.protocol.parts import Clock
from tests.tools import ROOT
from tests.waiting import until

Answer = Callable[[Message], Message | None]


def welcome(name: str = "actor-0", incarnation: int = 3, run: str = "run1", heartbeat: float = 0.05) -> Welcome:
    return Welcome(
        run=run,
        name=name,
        incarnation=incarnation,
        config="{}",
        world="{}",
        policies=["gem"],
        lease=5.0,
        heartbeat=heartbeat,
    )


def polite(message: Message) -> Message | None:
    """Lets everybody in."""
    if isinstance(message, Join):
        return welcome()
    return Status(command="stop" if isinstance(message, Leave) else "go")


class Coordinator:
    """A `ControlServer` in a thread, which answers by a script and notes what it heard."""

    def __init__(self, base: int, answer: Answer = polite, keys: str = "") -> None:
        self.answer = answer
        self.heard: list[Message] = []
        self.refused = 0
        self.quarantined = (0, 0)
        self._context = open_context(keys, "coordinator")
        self._ports = Ports(self._context, "127.0.0.1", base)
        until(self._bind)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator")
        self._thread.start()

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    def close(self) -> None:
        self._ending.set()
        self._thread.join(60)
        self._ports.close()
        self._context.destroy(linger=0)

    def _bind(self) -> bool:
        try:
            self._ports.bind({0: zmq.ROUTER})
        except Exception:
            return False
        return True

    def _run(self) -> None:
        server = ControlServer(self._ports.sockets[0])
        while not self._ending.is_set():
            for peer, message in server.requests(20):
                self.heard.append(message)
                answer = self.answer(message)
                if answer is not None:
                    server.answer(peer, answer)
            self.refused = server.counts["requests"]
            self.quarantined = (server.counts["quarantined_peers"], server.counts["quarantined_requests"])


@contextmanager
def coordinator(base: int, answer: Answer = polite, keys: str = "") -> Iterator[Coordinator]:
    made = Coordinator(base, answer, keys)
    try:
        yield made
    finally:
        made.close()


class Worker:
    """A client with its own context."""

    def __init__(self, base: int, name: str = "") -> None:
        self.context = zmq.Context(1)
        self.client = ControlClient(self.context, f"tcp://127.0.0.1:{base}", "actor", name)
        self.report = Report(state="acting", counters={"steps": 1.0})

    def take(self) -> Report:
        report, self.report = self.report, Report(state=self.report.state, counters=self.report.counters)
        return report

    def start(self) -> None:
        self.client.join(60)
        self.client.start(self.take)

    def close(self) -> None:
        self.client.close()
        self.context.destroy(linger=0)


@pytest.fixture
def worker(free_port_block: int) -> Iterator[Worker]:
    made = Worker(free_port_block)
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "control"]


def test_a_worker_joins_beats_and_leaves(worker: Worker, free_port_block: int) -> None:
    route = Route(policy="gem", learner="l", incarnation=1, experience="e", weights="w", acknowledgements="a")

    def answer(message: Message) -> Message | None:
        if isinstance(message, Heartbeat):
            return Status(command="drain", routes=[route], actors=[("actor-0", 3)])
        return polite(message)

    with coordinator(free_port_block, answer) as server:
        told = worker.client.join(60)
        assert (told.name, told.incarnation, told.policies) == ("actor-0", 3, ["gem"])
        assert worker.client.command == "go"
        worker.report.routes = [route]
        worker.report.episodes = [("gem", 10, 1, 2.5, 5)]
        worker.client.start(worker.take)
        until(lambda: worker.client.status)
        assert worker.client.changed.wait(60)
        until(lambda: worker.client.command == "drain")
        status = worker.client.status
        assert status is not None
        assert (status.routes, status.actors) == ([route], [("actor-0", 3)])
        now = time.monotonic()
        until(lambda: worker.client.heard_at > now)
        until(lambda: len(server.of(Heartbeat)) >= 3)
        worker.report.episodes = [("gem", 20, 1, 3.5, 5)]
        worker.client.leave("it broke")
        join, first, leave = server.of(Join)[0], server.of(Heartbeat)[0], server.of(Leave)[0]
        assert (join.role, join.release, join.pid, join.name, join.incarnation) == (
            "actor",
            RELEASE,
            os.getpid(),
            "",
            0,
        )
        assert (first.name, first.incarnation, first.token) == ("actor-0", 3, join.token)
        assert (first.state, first.routes, first.counters) == ("acting", [route], {"steps": 1.0})
        told_episodes = [
            episode for heartbeat in server.of(Heartbeat) for episode in heartbeat.episodes
        ] + leave.episodes
        assert list(dict.fromkeys(told_episodes)) == [("gem", 10, 1, 2.5, 5), ("gem", 20, 1, 3.5, 5)]
        assert (leave.error, leave.token) == ("it broke", join.token)
        heartbeats = len(server.of(Heartbeat))
        time.sleep(0.2)
        assert len(server.of(Heartbeat)) == heartbeats  # who has left is silent


NOT_YET = refusal(Refused("run_is_ending"), retry=True)


def test_not_yet_means_ask_again(worker: Worker, free_port_block: int) -> None:
    answers = [NOT_YET, NOT_YET, welcome()]
    with coordinator(free_port_block, lambda _: answers.pop(0)) as server:
        assert worker.client.join(60) == welcome()
        assert len(server.of(Join)) == 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wakes", [False, True])
def test_G5_a_coordinator_that_never_answers_is_named_at_the_deadline(
    worker: Worker, free_port_block: int, monkeypatch: pytest.MonkeyPatch, wakes: bool
) -> None:
    """What wakes a poll may turn out to be no message: one that cannot be decrypted."""
    if wakes:
        monkeypatch.setattr(client, "poll", lambda sockets, milliseconds: True)
    started = time.monotonic()
    with raises(Timeout, "no_coordinator_answered", peer=f"tcp://127.0.0.1:{free_port_block}", seconds=0.3):
        worker.client.join(0.3)
    assert 0.2 < time.monotonic() - started < 60


def test_G5_always_refusing_retry_ends_at_the_deadline_too_and_why_it_waits_is_in_the_log(
    worker: Worker, free_port_block: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G5: joining is bounded."""
    monkeypatch.setattr(client, "time", Clock())
    with coordinator(free_port_block, lambda _: NOT_YET), raises(Refused, "run_is_ending") as caught:
        worker.client.join(24.5)
    assert "24.5 s" in str(caught.value), "how long it asked"
    (line,) = [message for message in caplog.messages if message.startswith("event=waiting for=coordinator")]
    assert f"reason=not yet: {NOT_YET.reason.partition(' [')[0]}" in line


def test_A1_a_worker_may_start_long_before_its_coordinator_and_asks_it_once(
    worker: Worker, free_port_block: int
) -> None:
    """A1: in any order; the requests of all the seconds of waiting do not pile up."""
    found: list[Welcome] = []
    thread = threading.Thread(target=lambda: found.append(worker.client.join(60)))
    thread.start()
    time.sleep(1.5)
    assert worker.client._surplus == 0, "nothing was sent to nobody"
    with coordinator(free_port_block) as server:
        thread.join(60)
        assert found == [welcome()]
        asked = 1 + worker.client._surplus  # once more for each second that this coordinator took
        until(lambda: len(server.of(Join)) == asked)


def test_late_answers_to_repeated_requests_mean_nothing(worker: Worker, free_port_block: int) -> None:
    """A slow coordinator answers each of them, the later ones with a refusal: all places are taken, by this worker."""
    answers: list[Message] = [welcome()]

    def slow(message: Message) -> Message | None:
        if isinstance(message, Join):
            if len(server.of(Join)) == 1:
                until(lambda: worker.client._surplus >= 3)
            return answers.pop(0) if answers else Refusal(reason="all actors are there")
        return polite(message)

    with coordinator(free_port_block, slow) as server:
        worker.start()
        until(lambda: len(server.of(Join)) >= 3 and len(server.of(Heartbeat)) >= 3)
        time.sleep(0.2)
        assert worker.client.command == "go"


def a_join(oldest: int, newest: int) -> Join:
    """Of a later release."""
    return Join(role="actor", token="t", release="9.9.9", host="h", pid=1, oldest_schema=oldest, newest_schema=newest)


def test_Z4_releases_without_a_common_schema_are_parted_in_a_sentence() -> None:
    """Z4: naming both, and what to do."""
    told = check_schemas(a_join(SCHEMA + 1, SCHEMA + 2))
    assert told is not None
    assert (told.kind, told.value, told.release, told.expected) == (
        "schemas_differ",
        f"schemas {SCHEMA + 1} to {SCHEMA + 2}",
        RELEASE,
        f"schema {SCHEMA}",
    )
    assert "9.9.9" in told.peer
    assert check_schemas(a_join(SCHEMA, SCHEMA + 1)) is None
    assert check_schemas(a_join(SCHEMA, SCHEMA)) is None
    assert check_schemas(a_join(3, 1)) is not None  # no range at all


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [((1, 1), (2, 3), None), ((1, 2), (1, 1), 1), ((1, 2), (2, 3), 2)],
)
def test_Z4_both_speak_the_highest_common_schema(
    monkeypatch: pytest.MonkeyPatch,
    free_port_block: int,
    ours: tuple[int, int],
    theirs: tuple[int, int],
    spoken: int | None,
) -> None:
    """Z4: a later worker at this coordinator, and this release's worker at a later one; a refusal is always heard."""
    monkeypatch.setattr(versioning, "SPOKEN", Schemas(*ours))

    def answer(message: Message) -> Message | None:
        if isinstance(message, Join) and (differs := check_schemas(message)) is not None:
            return refusal(differs)
        return polite(message)

    context = zmq.Context(1)
    with coordinator(free_port_block, answer) as server:
        peer = connect(context, zmq.DEALER, f"tcp://127.0.0.1:{free_port_block}")
        peer.send(encode(a_join(*theirs).model_copy(update={"schema_number": theirs[1]})))
        assert peer.poll(60_000)
        told, _ = decode([peer.recv()])
        if spoken is None:
            assert isinstance(told, Refusal)
            assert kinds_in(told.reason) == ["schemas_differ"]
        else:
            assert isinstance(told, Welcome)
            assert told.schema_number == spoken
            heartbeat = Heartbeat(schema_number=spoken, name="actor-0", token="t", incarnation=3, state="acting")
            peer.send(encode(heartbeat))
            assert peer.poll(60_000)
            status, _ = decode([peer.recv()])
            assert status.schema_number == spoken
        peer.close(linger=0)
        assert server.refused == 0
    context.destroy(linger=0)


def test_Z4_a_worker_speaks_the_schema_it_was_welcomed_in(
    monkeypatch: pytest.MonkeyPatch, worker: Worker, free_port_block: int
) -> None:
    """Z4: the coordinator chooses."""
    monkeypatch.setattr(versioning, "SPOKEN", Schemas(1, 2))
    with coordinator(free_port_block) as server:
        worker.client._join = worker.client._join.model_copy(update={"newest_schema": 2})
        worker.start()
        until(lambda: server.of(Heartbeat))
        worker.client.leave()
        assert {message.schema_number for message in (*server.of(Heartbeat), *server.of(Leave))} == {2}


def test_when_the_coordinator_returns_its_workers_rejoin_as_who_they_were(worker: Worker, free_port_block: int) -> None:
    """With name, token and incarnation; and what happened meanwhile is told."""

    def forgetful(message: Message) -> Message | None:
        if isinstance(message, Heartbeat) and not server.of(Join):
            return Status(command="rejoin")
        return polite(message)

    with coordinator(free_port_block) as server:
        worker.start()
        until(lambda: len(server.of(Heartbeat)) >= 2)
        token = server.of(Join)[0].token
    worker.report.episodes = [("gem", 30, 2, 1.5, 5)]
    time.sleep(0.5)
    assert worker.client.command == "go"  # it goes on alone
    with coordinator(free_port_block, forgetful) as server:
        until(lambda: server.of(Join) and len(server.of(Heartbeat)) >= 4)
        join = server.of(Join)[0]
        assert (join.name, join.incarnation, join.token) == ("actor-0", 3, token)
        until(lambda: worker.client.status is not None and worker.client.status.command == "go")
        after = server.heard[server.heard.index(join) :]
        episodes = [
            episode for heartbeat in after if isinstance(heartbeat, Heartbeat) for episode in heartbeat.episodes
        ]
        assert set(episodes) == {("gem", 30, 2, 1.5, 5)}
        assert worker.client.command == "go"


def test_episodes_are_told_until_a_coordinator_answers(worker: Worker, free_port_block: int) -> None:
    """Who dies with a heartbeat unanswered takes nothing along, and the next one need not even have forgotten us."""

    def silent(message: Message) -> Message | None:
        return None if isinstance(message, Heartbeat) else polite(message)

    with coordinator(free_port_block, silent) as server:
        worker.report.episodes = [("gem", 30, 2, 1.5, 5)]
        worker.start()
        until(lambda: len(server.of(Heartbeat)) >= 2)
        assert all(heartbeat.episodes == [("gem", 30, 2, 1.5, 5)] for heartbeat in server.of(Heartbeat))
        worker.report.episodes = [("gem", 40, 1, 0.5, 5)]
        until(lambda: len(server.of(Heartbeat)[-1].episodes) == 2)
    with coordinator(free_port_block) as server:
        until(lambda: server.of(Heartbeat) and not server.of(Heartbeat)[-1].episodes)
        assert server.of(Heartbeat)[0].episodes == [("gem", 30, 2, 1.5, 5), ("gem", 40, 1, 0.5, 5)]


def test_an_answer_that_nobody_asked_for_acknowledges_no_episodes(worker: Worker, free_port_block: int) -> None:
    """One with another command than before may have been sent before the heartbeat came that told of them."""

    def answer(message: Message) -> Message | None:
        told = any(heartbeat.episodes for heartbeat in server.of(Heartbeat))
        return Status(command="pause" if told else "go") if isinstance(message, Heartbeat) else polite(message)

    with coordinator(free_port_block, answer) as server:
        worker.start()
        until(lambda: worker.client.status)
        worker.report.episodes = [("gem", 30, 2, 1.5, 5)]
        until(lambda: worker.client.command == "pause" and not server.of(Heartbeat)[-1].episodes)
        told = [heartbeat.episodes for heartbeat in server.of(Heartbeat) if heartbeat.episodes]
        assert told == [[("gem", 30, 2, 1.5, 5)]] * 2


@pytest.mark.parametrize(
    "other", [welcome(run="run2"), welcome(incarnation=4), welcome(name="actor-1"), Refusal(reason="who are you?")]
)
def test_a_worker_that_is_not_taken_back_as_who_it_was_stops(
    worker: Worker, free_port_block: int, other: Message
) -> None:
    """For instance because another run's coordinator has this address now."""
    joins = 0

    def answer(message: Message) -> Message | None:
        nonlocal joins
        if isinstance(message, Join):
            joins += 1
            return welcome() if joins == 1 else other
        return Status(command="rejoin") if isinstance(message, Heartbeat) else polite(message)

    with coordinator(free_port_block, answer):
        worker.start()
        until(lambda: worker.client.command == "stop")
        assert worker.client.changed.is_set()


def test_leaving_an_absent_coordinator_is_bounded(worker: Worker, free_port_block: int) -> None:
    with coordinator(free_port_block):
        worker.start()
    started = time.monotonic()
    worker.client.leave(seconds=0.3)
    assert time.monotonic() - started < 60
    worker.client.close()
    worker.client.leave()  # after closing it is nothing
    worker.client.close()


def test_leaving_before_joining_is_nothing(worker: Worker) -> None:
    started = time.monotonic()
    worker.client.leave("failed early", seconds=600)
    assert time.monotonic() - started < 60


def test_G3_an_error_of_any_length_reaches_the_coordinator(worker: Worker, free_port_block: int) -> None:
    """G3: the end of a long traceback is what matters."""
    with coordinator(free_port_block) as server:
        worker.client.join(60)
        worker.client.leave("x" * 1_000_000 + "the last line")
        until(lambda: server.of(Leave))
        assert server.of(Leave)[0].error.endswith("the last line")


def test_garbage_from_a_coordinator_is_ignored(worker: Worker, free_port_block: int) -> None:
    def answer(message: Message) -> Message | None:
        if isinstance(message, Heartbeat):
            return Ack(policy="p", learner_incarnation=1, actor="a", incarnation=1, acknowledged=1, announced=1)
        return polite(message)

    with coordinator(free_port_block, answer) as server:
        worker.start()
        until(lambda: len(server.of(Heartbeat)) > 3)
        assert worker.client.command == "go"


def test_a_report_that_raises_stops_the_worker_instead_of_silencing_it(worker: Worker, free_port_block: int) -> None:
    def broken() -> Report:
        raise ZeroDivisionError

    with coordinator(free_port_block):
        worker.client.join(60)
        worker.client.start(broken)
        until(worker.client.changed.is_set)
        assert worker.client.command == "stop"
        worker.client._report = Report


def test_malformed_requests_are_refused_counted_and_harm_nobody(worker: Worker, free_port_block: int) -> None:
    with coordinator(free_port_block) as server:
        worker.client.join(60)
        stranger = connect(worker.context, zmq.DEALER, f"tcp://127.0.0.1:{free_port_block}")
        bad = [
            [b""],
            [b"\xc1garbage"],
            [b"\x91" * 10_000],
            [encode(Refusal(reason="x")).replace(b"refusal", b"REFUSAL")],
            [encode(Status(command="go")).replace(b"number" + bytes([SCHEMA]), b"number" + bytes([SCHEMA + 1]))],
            [encode(Refusal(reason="x")), b"one frame too many"],
            [encode(Status(command="stop"))],
        ]
        for frames in bad:
            stranger.send_multipart(frames)
        for _ in bad:
            assert stranger.poll(60_000)
            assert b"refusal" in stranger.recv()
        until(lambda: server.refused == len(bad))
        worker.client.start(worker.take)
        until(lambda: worker.client.status)


def test_a_refusal_names_the_field_what_was_there_and_what_may_be(worker: Worker, free_port_block: int) -> None:
    who = {
        "type": "join",
        "schema_number": SCHEMA,
        "role": "actor",
        "token": "t",
        "release": "0",
        "host": "h",
        "pid": 1,
    }
    with coordinator(free_port_block):
        stranger = connect(worker.context, zmq.DEALER, f"tcp://127.0.0.1:{free_port_block}")
        for field, value, limit in (("pid", -1, "ge 0"), ("token", "t" * 129, "max_length 128"), ("host", 7, "")):
            stranger.send(msgpack.packb(who | {field: value}))
            assert stranger.poll(60_000)
            refused, _ = decode([stranger.recv()])
            assert isinstance(refused, Refusal)
            assert (refused.kind, refused.field, refused.limit) == ("message_field_invalid", field, limit)
            assert refused.value == str(value)[:80]


def test_nobody_joins_as_another_role_than_that_of_its_key(tmp_path: Path, free_port_block: int) -> None:
    """The right key opens the port; what its holder may call itself is a question of its own."""
    new_keys(tmp_path / "keys")
    keys = str(tmp_path / "keys")
    context = open_context(keys, "actor")
    with coordinator(free_port_block, keys=keys) as server:
        for role in ("learner", "actor"):
            client = ControlClient(context, f"tcp://127.0.0.1:{free_port_block}", role)
            if role == "actor":
                assert client.join(60) == welcome()
            else:
                with raises(Refused, "role_key_mismatch") as caught:
                    client.join(60)
                assert {"learner", "actor"} <= set(re.findall(r"\w+", str(caught.value)))
            client.close()
        assert [join.role for join in server.of(Join)] == ["actor"]
    context.destroy(linger=0)


def test_a_peer_that_keeps_sending_garbage_is_quarantined_alone(worker: Worker, free_port_block: int) -> None:
    """It costs a look at its identity from then on; others, of the same host too, are served."""
    with coordinator(free_port_block) as server:
        stranger = connect(worker.context, zmq.DEALER, f"tcp://127.0.0.1:{free_port_block}")
        for _ in range(100):
            stranger.send(b"\xc1garbage")
        stranger.send(encode(a_join(SCHEMA, SCHEMA)))
        until(lambda: server.quarantined == (1, 81))
        assert server.refused == 20
        told = []
        for _ in range(20):
            assert stranger.poll(60_000)
            told.append(decode([stranger.recv()])[0])
        assert not stranger.poll(200)
        last = told[-1]
        assert isinstance(last, Refusal)
        assert kinds_in(last.reason) == ["header_not_msgpack", "connection_quarantined"]
        assert last.reason.startswith("20 ")
        stranger.close(linger=0)
        worker.start()
        until(lambda: worker.client.status)


def test_however_many_are_refused_the_log_stays_short(free_port_block: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    context = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", free_port_block)
    address = ports.bind({0: zmq.ROUTER})[0]
    server = ControlServer(ports.sockets[0])
    strangers = [connect(context, zmq.DEALER, address) for _ in range(30)]
    for stranger in strangers:
        for _ in range(20):
            stranger.send(b"\xc1garbage")
    until(lambda: list(server.requests(20)) or server.counts["requests"] == 600)
    for _ in range(300):
        server.answer(b"nobody", Status(command="go"))
    lines = [line for line in caplog.messages if line.startswith("event=")]
    assert len(lines) < 40
    assert server.refusals.counters() == {
        "refusals.message_refused.header_not_msgpack": 600,
        "refusals.peer_quarantined.connection_quarantined": 30,
        "refusals.answer_not_sent.status": 300,
    }
    context.destroy(linger=0)


def test_a_frame_beyond_the_largest_header_costs_its_sender_the_connection(
    worker: Worker, free_port_block: int
) -> None:
    """Before it is in memory; others are served meanwhile."""
    with coordinator(free_port_block) as server:
        stranger = connect(worker.context, zmq.DEALER, f"tcp://127.0.0.1:{free_port_block}")
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.send(bytes(MAX_HEADER + 1))
        assert monitor.poll(60_000)
        assert server.refused == 0
        worker.start()
        until(lambda: worker.client.status)
        stranger.disable_monitor()
        stranger.close(linger=0)


def test_a_flood_of_new_peers_needs_no_more_memory(free_port_block: int) -> None:
    context = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", free_port_block)
    address = ports.bind({0: zmq.ROUTER})[0]
    server = ControlServer(ports.sockets[0])
    for number in range(1100):
        server._refuse(zmq.Frame(b""), str(number).encode(), WireError("header_not_msgpack", reason="no"))
    assert len(server._faults) == 1000
    assert server._faults.get(b"1099") == 1
    assert address.startswith("tcp://")
    ports.close()
    context.destroy(linger=0)


ORPHAN = """
import os, sys, time, zmq
from protocol.control.client import ControlClient, pause
from protocol.errors import Timeout
from protocol.control.heartbeat import Report
context = zmq.Context(1)
client = ControlClient(context, sys.argv[1], "actor")
if sys.argv[2] == "member":
    client.join(60)
    client.start(Report)
    print("member", flush=True)
    end = time.monotonic() + 60
    while client.command != "stop" and time.monotonic() < end:
        client.changed.wait(0.05)
        client.changed.clear()
    print(client.command, client.orphaned, flush=True)
else:
    try:
        print("waiting", flush=True)
        client.join(60)
    except Timeout as fault:
        print(fault.coded, flush=True)
client.close()
context.destroy(linger=0)
"""

PARENT = """
import os, subprocess, sys
environment = {**os.environ, "ROOKERY_PARENT": str(os.getpid())}
subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], env=environment)
sys.stdin.readline()
"""


@pytest.mark.parametrize(("way", "told"), [("member", "stop True"), ("waiting", "[supervisor_gone]")])
def test_B11_an_orphan_stops_by_itself(free_port_block: int, way: str, told: str) -> None:
    """The supervisor is killed; its worker notices, as a member and while it still waits to become one (B11, U13)."""
    command = [sys.executable, "-c", PARENT, ORPHAN, f"tcp://127.0.0.1:{free_port_block}", way]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if way == "member":
            with coordinator(free_port_block):
                assert process.stdout.readline().strip() == way
                process.kill()
                assert told in process.stdout.readline()
        else:
            assert process.stdout.readline().strip() == way
            process.kill()
            assert told in process.stdout.readline()
        assert process.stdout.readline() == ""  # the pipe closes: the orphan has ended
    finally:
        process.kill()
        process.wait(60)
        process.stdin.close()
        process.stdout.close()


def test_an_answer_to_one_that_has_gone_is_told_to_whoever_gives_it(free_port_block: int) -> None:
    """It asked and ended while the coordinator had no time: it must not be taken for a member."""
    contexts = [open_context("", "coordinator"), zmq.Context(1)]
    ports = Ports(contexts[0], "127.0.0.1", free_port_block)
    ports.bind({0: zmq.ROUTER})
    server = ControlServer(ports.sockets[0])
    peers = []
    try:
        for _ in range(2):
            asking = connect(contexts[1], zmq.DEALER, f"tcp://127.0.0.1:{free_port_block}")
            asking.send(encode(a_join(SCHEMA, SCHEMA)))
            until(lambda: poll([ports.sockets[0]], 50))
            peers.append((asking, next(iter(server.requests(0)))[0]))
        (gone, was), (_, there) = peers
        gone.close(linger=0)
        until(lambda: not server.answer(was, Status(command="go")))
        assert server.gone == {was}
        assert server.answer(there, Status(command="go"))
        assert list(server.requests(0)) == []
        assert server.gone == set(), "it is of the newest requests"
    finally:
        ports.close()
        for context in contexts:
            context.destroy(linger=0)


def test_who_waits_asks_often_at_first_and_then_ever_more_seldom() -> None:
    """Fifty actors that wait for a learner would else ask five hundred times a second until it comes."""
    asked, now = 0, 0.0
    while now < 30:
        asked, now = asked + 1, now + pause(now, 1.0)
    assert asked < 60, "and not 300"
    assert pause(0.0, 1.0) == pause(1.0, 1.0) == 0.1
    assert pause(5.0, 1.0) == 0.5
    assert pause(60.0, 1.0) == 1.0
    assert pause(0.0, 0.05) == 0.05, "never more seldom than others"
