"""A small HTTP server in threads of its own, on a socket that is listening already.

In flow: requests. Out flow: what the route's function answers, at once or, as an iterator of bytes, bit by bit.
"""

from __future__ import annotations

import logging
import socket as system
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["HttpRequest", "HttpServer", "Response", "Routes"]

log = logging.getLogger(__name__)

_CONNECTIONS = 64
"""At the same time; more are hung up on."""
_STREAMS = 32
"""Of them those whose answers go on: probes and pages always find room beside them."""
_SILENCE = 10.0
"""Seconds that a peer may take to say or to take in what it wants."""
_LARGEST = 65_536
"""Bytes of a request's body."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is asked."""

    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    ending: threading.Event
    """Set when the server closes: an answer that goes on has to end."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    body: bytes | Iterator[bytes]
    kind: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Routes = Mapping[tuple[str, str], Callable[[HttpRequest], Response]]
"""(method, path) -> its function."""


class HttpServer:
    """Answers until `close`. `socket` belongs to it."""

    def __init__(self, socket: system.socket, routes: Routes) -> None:
        self._server = _Server(socket, routes)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def rejected(self) -> int:
        """Connections that were hung up on because there were too many."""
        return self._server.rejected

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

    def __init__(self, socket: system.socket, routes: Routes) -> None:
        super().__init__(socket.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket
        self.routes, self.ending, self.rejected = routes, threading.Event(), 0
        self.streams = threading.BoundedSemaphore(_STREAMS)
        self._open: set[system.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= _CONNECTIONS
            if not full:
                self._open.add(request)
        if full:
            self.rejected += 1
            super().shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.warning("event=http_failed peer=%s error=%s", client_address[0], sys.exc_info()[1])

    def wake(self) -> None:
        """Ends the wait for the next connection, which looks up every half second only."""
        try:
            self.socket.shutdown(system.SHUT_RDWR)
        except OSError:
            pass  # not everywhere can a listening socket be shut down

    def hang_up(self) -> None:
        """Ends the waits of all handlers."""
        with self._lock:
            for request in self._open:
                try:
                    request.shutdown(system.SHUT_RDWR)
                except OSError:
                    pass  # the peer has hung up


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENCE
    server_version, sys_version = "rookery", ""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        function = self.server.routes.get((self.command, parts.path))
        length = self.headers.get("Content-Length", "0")
        if function is None:
            response = Response(b"there is nothing here\n", status=HTTPStatus.NOT_FOUND)
        elif not length.isdigit() or int(length) > _LARGEST:
            response = Response(b"that is too large\n", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            body = self.rfile.read(int(length))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                response = function(HttpRequest(parts.path, parse_qs(parts.query), headers, body, self.server.ending))
            except Exception as fault:  # of one answer: the worker goes on
                log.exception("event=http_failed path=%s error=%s", parts.path, type(fault).__name__)
                response = Response(b"this answer failed; see the worker's log\n", status=500)
        self._send(response)

    def _send(self, response: Response) -> None:
        if isinstance(response.body, bytes):
            self._write(response, (response.body,))
        elif self.server.streams.acquire(blocking=False):
            try:
                self._write(response, response.body)
            finally:
                self.server.streams.release()
        else:
            self.server.rejected += 1
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
            for part in parts:
                self.wfile.write(part)
        except OSError:
            self.close_connection = True  # the peer has hung up, or takes nothing in

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no events of the run."""
