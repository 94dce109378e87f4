"""A small HTTP server in threads of its own, on a socket that is listening already.

In flow: requests. Out flow: what the route's function answers, at once or, as an iterator of bytes, bit by bit.

Who speaks slowly, or from many connections, keeps nobody from asking whether this process is well: beyond the places of
all, or of one address, a connection is given one of the reserve, where only `PROBES` are answered, and where the one
that waits longest makes room for the next.
"""

from __future__ import annotations

import io
import json
import logging
import re
import socket as system
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from protocol.refusal_log import RefusalLog
from protocol.transport.sockets import is_loopback

log = logging.getLogger(__name__)

PROBES = ("/healthz", "/readyz")
"""What is answered in the reserve."""
_BY_ANY_NAME = (*PROBES, "/metrics")
"""What is answered whatever name was asked for: monitors come by the name that a worker advertises."""
_CONNECTIONS = 64
"""At the same time; more get a place in the reserve."""
_OF_ONE_ADDRESS = 48
"""Of them."""
_RESERVE = 16
_STREAMS = 32
"""Connections whose answers go on: pages always find room beside them."""
_HEADER_SECONDS = 5.0
"""In which the header of a request is said whole."""
_BODY_SECONDS = 5.0
"""In which its body is, from then on."""
_SILENCE = 10.0
"""Seconds that a peer may take to take in a part of an answer."""
_LARGEST = 65_536
"""Bytes of a request's body, and of its header."""
KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript"}
"""The kinds of a page's files."""
_ONLY_FROM_HERE = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is asked."""

    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    ending: threading.Event
    """Set when the server closes: an answer that goes on has to end."""
    peer: str = ""
    """The address that it comes from."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    body: bytes | Iterator[bytes]
    kind: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Routes = Mapping[tuple[str, str], Callable[[HttpRequest], Response]]
"""(method, path) -> its function."""


def asset(path: Path) -> Callable[[HttpRequest], Response]:
    """The answer with a file of a page, which may ask nobody else for anything."""

    def answer(_request: HttpRequest) -> Response:
        return Response(path.read_bytes(), KINDS[path.suffix], headers={"Content-Security-Policy": _ONLY_FROM_HERE})

    return answer


def as_json(data: object) -> Response:
    """As `json_bytes`."""
    return Response(json_bytes(data), "application/json")


def json_bytes(data: object) -> bytes:
    """JSON, in which what is no number is null."""
    return json.dumps(json.loads(json.dumps(data), parse_constant=lambda _: None), separators=(",", ":")).encode()


def refused(status: int, reason: str) -> Response:
    """A sentence on why not."""
    return Response(reason.encode() + b"\n", status=status)


def keep_cookie(request: HttpRequest, secret: str) -> Response:
    """Gives a browser the `secret` as a cookie, which scripts and other sites cannot read or send."""
    cookie = f"{_cookie_name(request)}={secret}; HttpOnly; SameSite=Strict; Path=/"
    return Response(b"{}", "application/json", headers={"Set-Cookie": cookie})


def cookie_of(request: HttpRequest) -> str:
    """The secret that the browser was given; empty without one."""
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(_cookie_name(request))
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _cookie_name(request: HttpRequest) -> str:
    """Pages on one machine differ in their ports, which cookies do not know."""
    return f"rookery_{request.headers.get('host', '').rpartition(':')[2]}"


class HttpServer:
    """Answers until `close`. `socket` belongs to it."""

    def __init__(self, socket: system.socket, routes: Routes, refusals: RefusalLog) -> None:
        self._server = _Server(socket, routes, refusals)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hangs up on everybody."""
        self._server.ending.set()
        self._server.wake()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # those are not waited for
    block_on_close = True

    def __init__(self, socket: system.socket, routes: Routes, refusals: RefusalLog) -> None:
        super().__init__(socket.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket
        self.routes, self.ending, self.refusals = routes, threading.Event(), refusals
        self.streams = threading.BoundedSemaphore(_STREAMS)
        self.local = is_loopback(socket.getsockname()[0])
        self._open: dict[system.socket, str] = {}
        """connection -> the address that it comes from."""
        self._reserve: dict[system.socket, str] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        address = client_address[0]
        with self._lock:
            if len(self._open) < _CONNECTIONS and [*self._open.values()].count(address) < _OF_ONE_ADDRESS:
                self._open[request] = address
            else:
                if len(self._reserve) >= _RESERVE:
                    self._make_room()
                self._reserve[request] = address
        super().process_request(request, client_address)

    def _make_room(self) -> None:
        """Hangs up on the one that has waited longest in the reserve, of the address that has most of it."""
        ((crowd, _),) = Counter(self._reserve.values()).most_common(1)
        oldest = next(request for request, address in self._reserve.items() if address == crowd)
        del self._reserve[oldest]
        self.refusals.tell("http_refused", "reserve_full", "others came that may ask for a probe", peer=crowd)
        _hang_up(oldest)

    def has_place(self, request: system.socket) -> bool:
        """Whether there was room for more than a probe."""
        return request in self._open

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._reserve.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(fault := sys.exc_info()[1], OSError):  # which is a peer that has hung up
            self.refusals.tell("http_failed", type(fault).__name__, str(fault), peer=client_address[0])

    def wake(self) -> None:
        """Ends the wait for the next connection, which looks up every half second only."""
        try:
            self.socket.shutdown(system.SHUT_RDWR)
        except OSError:
            pass  # not everywhere can a listening socket be shut down

    def hang_up(self) -> None:
        """Ends the waits of all handlers."""
        with self._lock:
            for request in (*self._open, *self._reserve):
                _hang_up(request)


def _hang_up(request: system.socket) -> None:
    try:
        request.shutdown(system.SHUT_RDWR)
    except OSError:
        pass  # the peer has hung up


class _Said(io.RawIOBase):
    """What a peer says: at most `left` bytes more, until `deadline`. An OSError where it says more, or takes longer, or
    hangs up, so that half of a request is none."""

    def __init__(self, connection: system.socket) -> None:
        self._connection = connection
        self.left, self.deadline = _LARGEST, time.monotonic() + _HEADER_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)
        try:
            count = self._connection.recv_into(memoryview(buffer)[: self.left]) if self.left else 0
        except TimeoutError:
            if self.left < _LARGEST:
                raise
            raise ConnectionError from None  # said nothing: a browser that connects in advance, a check of the port
        if not count:
            raise ConnectionError
        self.left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "rookery", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._said = _Said(self.connection)
        self.rfile = io.BufferedReader(self._said)

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError:
            self._send(Response(b"that is no address\n", status=HTTPStatus.BAD_REQUEST))
            return
        function = self.server.routes.get((self.command.replace("HEAD", "GET"), parts.path))
        length = self.headers.get("Content-Length", "0")
        if parts.path not in PROBES and not self.server.has_place(self.connection):
            self._refused("no_place", "too many ask at a time")
            response = Response(b"too many ask; ask again later\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        elif parts.path not in _BY_ANY_NAME and not self._addressed():
            self._refused("other_origin", f"{self.command} for {parts.path} of another page, or under another name")
            response = Response(b"ask for this as it is called, from its own page\n", status=HTTPStatus.FORBIDDEN)
        elif function is None:
            response = Response(b"there is nothing here\n", status=HTTPStatus.NOT_FOUND)
        elif not re.fullmatch("[0-9]{1,6}", length) or int(length) > _LARGEST:
            response = Response(b"that is too large\n", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._said.left, self._said.deadline = int(length), time.monotonic() + _BODY_SECONDS
            body = self.rfile.read(int(length))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                query, ending, peer = parse_qs(parts.query), self.server.ending, self.client_address[0]
                response = function(HttpRequest(parts.path, query, headers, body, ending, peer))
            except Exception as fault:  # of one answer: the worker goes on
                if self.server.refusals.tell("http_failed", type(fault).__name__, str(fault), path=parts.path):
                    log.exception("event=http_traceback path=%s", parts.path)
                response = Response(b"this answer failed; see the worker's log\n", status=500)
        self.connection.settimeout(_SILENCE)
        self._send(response)

    def _addressed(self) -> bool:
        """Whether this was meant for here. What a page of another origin has a browser send says so, but for a page
        whose own name was made to lead to loopback. An order says whom it is for."""
        if "Authorization" in self.headers:  # which no page of another origin can have a browser send unasked
            return True
        host, origin = self.headers.get("Host", "").lower(), self.headers.get("Origin")
        if not host:
            return self.command != "POST"
        if origin is not None and origin.lower().partition("://")[2] != host:
            return False
        return not self.server.local or is_loopback(re.sub(":[0-9]*$", "", host))

    def _refused(self, kind: str, reason: str) -> None:
        self.server.refusals.tell("http_refused", kind, reason, peer=self.client_address[0])

    def _send(self, response: Response) -> None:
        if isinstance(response.body, bytes):
            self._write(response, (response.body,))
        elif self.server.streams.acquire(blocking=False):
            try:
                self._write(response, response.body)
            finally:
                self.server.streams.release()
        else:
            self._refused("no_stream", "too many follow what goes on")
            self._send(Response(b"too many follow this; ask again later\n", status=HTTPStatus.SERVICE_UNAVAILABLE))

    def _write(self, response: Response, parts: Iterable[bytes]) -> None:
        try:
            self.send_response(response.status)
            self.send_header("Content-Type", response.kind)
            self.send_header("X-Content-Type-Options", "nosniff")
            if isinstance(response.body, bytes):
                self.send_header("Content-Length", str(len(response.body)))
            for name, value in {"Cache-Control": "no-store", **response.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in parts if self.command != "HEAD" else ():
                self.wfile.write(part)
        except OSError:
            self.close_connection = True  # the peer has hung up, or takes nothing in

    def log_error(self, format: str, *args: Any) -> None:
        self._refused("no_request", format % args)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no events of the run."""
