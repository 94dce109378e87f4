"""Asking a server as a browser or a probe does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import zmq

from protocol.refusal_log import RefusalLog
from protocol.transport.ports import HTTP
from protocol.transport.sockets import Ports
from workers.runtime.http_server import HttpServer, Routes

__all__ = ["Answer", "ask", "serving"]


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, body: bytes | None = None, **headers: str) -> Answer:
    """GET, or POST of `body`; `headers` with underscores for dashes."""
    request = urllib.request.Request(url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return Answer(response.status, dict(response.headers), response.read())
    except urllib.error.HTTPError as fault:
        with fault:
            return Answer(fault.code, dict(fault.headers), fault.read())


@contextmanager
def serving(routes: Routes) -> Iterator[str]:
    """The URL of a server of `routes`."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", 0)
    url = ports.bind({}, http=True)[HTTP]
    assert ports.http is not None
    server = HttpServer(ports.http, routes, RefusalLog())
    try:
        yield url
    finally:
        server.close()
        context.destroy(linger=0)
