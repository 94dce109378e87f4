"""The small HTTP server: answers, refuses, goes on after a fault, and ends at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import zmq

from protocol.errors import ConfigurationError
from protocol.transport.sockets import HTTP, Ports
from tests.faults import raises
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


def test_one_answer_that_fails_costs_no_other() -> None:
    with serving(ROUTES) as url:
        assert ask(f"{url}/fails").status == 500
        assert ask(f"{url}/").status == 200


def test_a_body_without_bounds_is_not_read() -> None:
    with serving(ROUTES) as url:
        assert ask(f"{url}/echo", b"x" * 65_537).status == 413


def test_who_says_nothing_holds_up_neither_others_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECTIONS", 3)
    with serving(ROUTES) as url:
        place = urlsplit(url)
        silent = [socket.create_connection((place.hostname or "", place.port or 0)) for _ in range(2)]
        assert ask(f"{url}/").text == "here"
        silent += [socket.create_connection((place.hostname or "", place.port or 0)) for _ in range(3)]
        assert silent[-1].recv(1) == b""  # one too many is hung up on
    for one in silent:
        one.close()


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
