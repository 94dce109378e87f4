"""The page on which a person plays: its files, the seat, the stream of moments, the actions.

In flows: requests; the moments of a seat. Out flows: server-sent events; actions for the seat.

The printed address has a token that takes the seat once. Whoever took it goes on by a cookie; others are refused.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.runtime.http_server import (
    HttpRequest,
    Response,
    Routes,
    as_json,
    asset,
    cookie_of,
    json_bytes,
    keep_cookie,
    refused,
)
from workers.tools.play.seat import Seat

_ASSETS = Path(__file__).parent / "assets"
_MOST_BYTES, _MOST_MESSAGES = 4_096, 100
"""Of a message, and messages in a second."""
_ALIVE = 0.5
"""Seconds after which a comment says that nothing is new: by it a page that was closed is noticed."""


class PlayPage:
    """Of the `seat`; `about`: what the page says and offers. Once `over` has something to tell, that is told."""

    def __init__(self, seat: Seat, about: Mapping[str, Any]) -> None:
        self._seat, self._about = seat, about
        self.over: Mapping[str, Any] | None = None
        self._stream = 0
        self._times: deque[float] = deque([float("-inf")] * _MOST_MESSAGES, _MOST_MESSAGES)

    def routes(self) -> Routes:
        """All there is."""
        files = {"/": "index.html", "/play.js": "play.js", "/play.css": "play.css"}
        return {
            **{("GET", path): asset(_ASSETS / name) for path, name in files.items()},
            ("POST", "/seat"): self._take,
            ("GET", "/about"): self._players(lambda _: as_json(self._about)),
            ("GET", "/moments"): self._players(self._moments),
            ("POST", "/act"): self._players(self._act),
        }

    def _take(self, request: HttpRequest) -> Response:
        if self._seat.is_players(cookie_of(request)):
            return as_json({})
        secret = self._seat.take(request.body.decode(errors="replace").strip())
        if secret is None:
            return refused(403, "this seat is taken, or that is not its token; open the address that was printed")
        return keep_cookie(request, secret)

    def _players(self, function: Callable[[HttpRequest], Response]) -> Callable[[HttpRequest], Response]:
        def answer(request: HttpRequest) -> Response:
            if not self._seat.is_players(cookie_of(request)):
                return refused(403, "another person plays here, or nobody yet; open the address that was printed")
            return function(request)

        return answer

    def _act(self, request: HttpRequest) -> Response:
        now = time.monotonic()
        if now - self._times[0] < 1.0:
            self._seat.refuse("too_many")
            return refused(429, f"more than {_MOST_MESSAGES} messages in a second; send fewer")
        self._times.append(now)
        if len(request.body) > _MOST_BYTES:
            self._seat.refuse("too_large")
            return refused(413, f"a message has at most {_MOST_BYTES} bytes; send the action alone")
        try:
            told = json.loads(request.body)
            turn, action = told["turn"], told["action"]
        except (ValueError, TypeError, KeyError, RecursionError):
            turn, action = None, None
        why = self._seat.choose(turn, action)
        return refused(409, f"that action is {why}; look at the newest moment") if why else as_json({})

    def _moments(self, _request: HttpRequest) -> Response:
        self._stream += 1
        return Response(self._events(self._stream), "text/event-stream")

    def _events(self, mine: int) -> Iterator[bytes]:
        """One page follows at a time: an older one is told so, and ends."""
        number = -1
        self._seat.page(opened=True)
        try:
            while self.over is None and mine == self._stream:
                newest, moment = self._seat.await_moment(number, _ALIVE)
                yield _event("moment", moment) if newest != number else b": nothing new\n\n"
                number = newest
            yield _event("over", self.over) if self.over is not None else _event("elsewhere", {})
        finally:
            self._seat.page(opened=False)


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + json_bytes(data) + b"\n\n"
