"""The small HTTP server: answers, refuses, goes on after a fault, and ends at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import pytest
import zmq

from protocol.errors import ConfigurationError
from protocol.transport.ports import HTTP
from protocol.transport.sockets import Ports
from tests.faults import raises
from tests.waiting import until
from tests.workers.coordination.dashboard.asking import ask, serving
from workers.runtime import http_server as module
from workers.runtime.http_server import HttpRequest, Response


def fails(_request: HttpRequest) -> Response:
    raise ValueError("in this answer only")


def echo(request: HttpRequest) -> Response:
    return Response(request.body, headers={"X-Asked": ",".join(request.query.get("a", []))})


ROUTES = {("GET", "/"): lambda _: Response(b"here"), ("GET", "/fails"): fails, ("POST", "/echo"): echo}


def test_a_route_is_its_method_and_path() -> None:
    with serving(ROUTES) as url:
        assert ask(f"{url}/?a=1").text == "here"
        assert ask(f"{url}/", b"").status == ask(f"{url}/nowhere").status == 404
        answer = ask(f"{url}/echo?a=1&a=2", b"said")
        assert (answer.text, answer.headers["X-Asked"]) == ("said", "1,2")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_one_answer_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with serving(ROUTES) as url:
        for _ in range(5):
            assert ask(f"{url}/fails").status == 500
        assert ask(f"{url}/").status == 200
    assert [line.partition(" ")[0] for line in caplog.messages] == ["event=http_failed", "event=http_traceback"]


def test_a_body_without_bounds_is_not_read() -> None:
    with serving(ROUTES) as url:
        assert ask(f"{url}/echo", b"x" * 65_537).status == 413


@contextmanager
def slow(url: str, count: int, said: bytes = b"GET / HT", source: str = "") -> Iterator[list[socket.socket]]:
    """Connections that have begun to ask, and say no more."""
    place = urlsplit(url)
    with ExitStack() as ends:
        made = []
        for _ in range(count):
            one = socket.create_connection((place.hostname or "", place.port or 0), 120, (source, 0))
            made.append(ends.enter_context(one))
            one.sendall(said)
        yield made


def hung_up(one: socket.socket) -> bool:
    """Whether the server ended it; waits until it says something or does."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def test_slow_connections_do_not_silence_healthz() -> None:
    """Neither as many as there are places, nor as many again, and whoever is well is not killed for them."""
    with serving({**ROUTES, ("GET", "/healthz"): lambda _: Response(b"well")}) as url:
        for source in ("127.0.0.1", "127.0.0.2"):
            with slow(url, 100, source=source), slow(url, 100):
                assert ask(f"{url}/healthz").text == "well"


def test_one_address_leaves_room_for_the_pages_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OF_ONE_ADDRESS", 3)
    with serving(ROUTES) as url, slow(url, 3, source="127.0.0.2"):
        assert ask(f"{url}/").text == "here"
        with slow(url, 1, b"GET / HTTP/1.0\r\n\r\n", "127.0.0.2") as (one,):
            assert one.recv(12) == b"HTTP/1.0 503"


def test_those_who_wait_longest_in_the_reserve_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of the address that fills it: another's are left in peace."""
    monkeypatch.setattr(module, "_CONNECTIONS", 0)
    monkeypatch.setattr(module, "_RESERVE", 3)
    with serving(ROUTES) as url, slow(url, 1, source="127.0.0.2") as (other,), slow(url, 2) as made, slow(url, 1):
        assert hung_up(made[0])
        for one in (other, made[1]):
            one.settimeout(0.05)
            with pytest.raises(TimeoutError):
                one.recv(1)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n", b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"]
)
def test_who_says_a_bit_now_and_then_is_hung_up_on(
    said: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A deadline is one of the whole header, and of the whole body: a byte more moves neither."""
    monkeypatch.setattr(module, "_HEADER_SECONDS", 0.2)
    monkeypatch.setattr(module, "_BODY_SECONDS", 0.2)
    with serving(ROUTES) as url, slow(url, 1, said) as (one,):
        one.settimeout(0.02)

        def ended() -> bool:
            try:
                one.sendall(b"x")
                return one.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(ended)
    assert [line for line in caplog.messages if line.startswith("event=http_refused peer=127.0.0.1 reason=")]


def test_who_says_nothing_is_hung_up_on_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Browsers connect in advance, and balancers look whether a port is open."""
    monkeypatch.setattr(module, "_HEADER_SECONDS", 0.1)
    with serving(ROUTES) as url, slow(url, 1, b"") as (one,):
        assert hung_up(one)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"HEAD / HTTP/1.0\r\n\r\n", (b"HTTP/1.0 200", b"")),
        (b"HEAD /echo HTTP/1.0\r\n\r\n", (b"HTTP/1.0 404", b"")),
        (b"GET http://[ HTTP/1.0\r\n\r\n", (b"HTTP/1.0 400", b"that is no address\n")),
        (b"GET / HTTP/1.0\r\nHost: LOCALHOST:1\r\n\r\n", (b"HTTP/1.0 200", b"here")),
        (b"GET / HTTP/1.0\r\nHost: trainer\r\n\r\n", (b"HTTP/1.0 403", b"ask for this as it is called")),
        (b"GET /metrics HTTP/1.0\r\nHost: trainer\r\n\r\n", (b"HTTP/1.0 200", b"1")),
    ],
)
def test_what_monitors_and_browsers_ask(said: bytes, answer: tuple[bytes, bytes]) -> None:
    routes = {**ROUTES, ("GET", "/metrics"): lambda _: Response(b"1")}
    with serving(routes) as url, slow(url, 1, said) as (one,), one.makefile("rb") as whole:
        header, _, body = whole.read().partition(b"\r\n\r\n")
    assert header.startswith(answer[0])
    assert body.startswith(answer[1])
    assert bool(body) == bool(answer[1])


def test_a_header_without_bounds_is_not_read() -> None:
    with serving(ROUTES) as url, slow(url, 1, b"GET / HTTP/1.0\r\n") as (one,):
        with suppress(ConnectionError):
            for number in range(40):
                one.sendall(b"X-%d: %s\r\n" % (number, b"x" * 4096))
            one.sendall(b"\r\n")
        assert hung_up(one)


@pytest.mark.parametrize("length", ["-1", "x", "\u00b2", "9" * 5000, "1e3"])
def test_what_is_no_length_is_refused(length: str) -> None:
    said = f"POST /echo HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode("latin-1")
    with serving(ROUTES) as url, slow(url, 1, said) as (one,):
        assert one.recv(12) == b"HTTP/1.0 413"


def test_half_a_body_is_no_order() -> None:
    """Whoever hangs up in the middle of it has given none."""
    asked = threading.Event()

    def order(_request: HttpRequest) -> Response:
        asked.set()
        return Response(b"done")

    said = b"POST /order HTTP/1.0\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf"
    with serving({("POST", "/order"): order}) as url, slow(url, 1, said) as (one,):
        one.shutdown(socket.SHUT_WR)
        assert hung_up(one)
    assert not asked.is_set()


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:1", "", 200),
        ("localhost:1", "http://localhost:1", 200),
        ("localhost:1", "http://localhost:2", 403),
        ("localhost:1", "http://evil.example", 403),
        ("localhost:1", "null", 403),
        ("evil.example", "http://evil.example", 403),
        ("", "", 403),
    ],
)
def test_a_page_of_another_origin_gives_no_orders(host: str, origin: str, status: int) -> None:
    """Nor one whose name was made to lead here."""
    lines = [f"Host: {host}"] * bool(host) + [f"Origin: {origin}"] * bool(origin) + ["Content-Length: 0"]
    said = "\r\n".join(["POST /echo HTTP/1.0", *lines, "", ""]).encode()
    with serving(ROUTES) as url, slow(url, 1, said) as (one,):
        assert one.recv(12) == b"HTTP/1.0 %d" % status


def test_an_answer_that_goes_on_ends_with_the_server() -> None:
    begun = threading.Event()

    def stream(request: HttpRequest) -> Response:
        def parts() -> Iterator[bytes]:
            while not request.ending.is_set():
                yield b"more\n"
                begun.set()
                time.sleep(0.01)

        return Response(parts())

    with serving({("GET", "/"): stream}) as url:
        place = urlsplit(url)
        listener = socket.create_connection((place.hostname or "", place.port or 0))
        listener.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert begun.wait(60)
    listener.close()


def test_those_who_follow_leave_room_for_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STREAMS", 2)
    begun = threading.Semaphore(0)

    def stream(request: HttpRequest) -> Response:
        def parts() -> Iterator[bytes]:
            begun.release()
            yield b"now\n"
            request.ending.wait()

        return Response(parts())

    with serving({**ROUTES, ("GET", "/events"): stream}) as url:
        place = urlsplit(url)
        listeners = [socket.create_connection((place.hostname or "", place.port or 0)) for _ in range(2)]
        for listener in listeners:
            listener.sendall(b"GET /events HTTP/1.0\r\n\r\n")
            assert begun.acquire(timeout=60)
        assert ask(f"{url}/events").status == 503
        assert ask(f"{url}/").text == "here"
    for listener in listeners:
        listener.close()


def test_http_is_the_last_port_of_a_block_and_free_with_it(free_port_block: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    first, second = (Ports(context, "127.0.0.1", free_port_block) for _ in range(2))
    addresses = first.bind({0: zmq.ROUTER}, http=True)
    assert addresses == {0: f"tcp://127.0.0.1:{free_port_block}", HTTP: f"http://127.0.0.1:{free_port_block + 9}"}
    with raises(
        ConfigurationError, "ports_not_bindable", first=free_port_block, last=free_port_block + 9, peer="127.0.0.1"
    ):
        second.bind({}, http=True)
    first.close()
    second.bind({}, http=True)
    second.close()
    context.destroy(linger=0)
