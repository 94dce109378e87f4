"""The page of a run, and what it is made from: the live view, curves, logs, the configuration; and three buttons.

In flows: requests; the coordinator's view. Out flows: answers, and as server-sent events every new view
(https://html.spec.whatwg.org/multipage/server-sent-events.html). Who has the run's token may look and act, on loopback
too, where all users of the machine come by: `Authorization: Bearer TOKEN`, or the cookie that the page got for it. The
token is `ROOKERY_TOKEN` or made for the run and kept in its folder, readable by its owner alone.

Other runs in the same folder, whose curves the page may show with its own, go by their names. A name means something
only if it is among those that the folder holds: no path is made of what a client says, and no link is followed.
"""

from __future__ import annotations

import hmac
import importlib.util
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from protocol.config.run import Run
from protocol.errors import ConfigurationError, RookeryError
from protocol.errors.distribution import install
from workers.coordination.controls import Controls
from workers.coordination.roster import Roster
from workers.coordination.sent_weights import SentWeights
from workers.metrics.history import History
from workers.runtime.http_server import (
    KINDS,
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

_ASSETS = Path(__file__).parent / "assets"
_LOOK = 0.2
"""Seconds between two looks for a new view."""
_ALIVE = 10.0
"""Seconds after which a comment says that nothing is new."""
_LOG_BYTES = 65_536
_WORKER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class Dashboard:
    """Of the `run` in `folder`; without `controls` it can only be looked at. `told` and `history` may be asked from any
    thread; `config` is that of all runs, where it is the page of several."""

    def __init__(
        self,
        folder: Path,
        run: Run,
        controls: Controls | None,
        told: Callable[[], Mapping[str, Any]],
        history: History,
        config: str = "",
    ) -> None:
        self._folder, self._controls, self._told, self._history = folder, controls, told, history
        self._logs, self._siblings = folder / run.log_dir, Siblings(folder)
        self._config = config or yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False)
        self.token = token_of(folder)
        self._last: tuple[object, object, bytes] = (None, None, b"{}")

    def routes(self) -> Routes:
        """Everything but probes and metrics."""
        reading = {
            "/api/view": lambda _: as_json(self._view()),
            "/api/curves": self._curves,
            "/api/runs": lambda _: as_json(self._siblings.names()),
            "/api/config": lambda _: Response(self._config.encode()),
            "/api/log": self._log,
            "/api/events": self._events,
        }
        acting: dict[str, Callable[[HttpRequest], Response]] = {}
        if (orders := self._controls) is not None:
            buttons = orders.checkpoint, orders.pause, orders.resume, orders.stop
            acting = {f"/api/{order.__name__}": _order(order) for order in buttons}
            acting |= {"/api/roster": _command(orders.roster), "/api/weights": _part(orders.roster.sent)}
            reading["/api/roster"] = lambda _: as_json(orders.roster.told)
        files = {"/": "index.html", "/dashboard.css": "dashboard.css"}
        files |= {f"/{name}": name for name in ("dashboard.js", "data_flow.js", "league.js", "curves.js")}
        return {
            **{("GET", path): asset(_ASSETS / name) for path, name in files.items()},
            ("GET", "/plotly.min.js"): _plotly,
            ("POST", "/api/session"): self._session,
            **{("GET", path): self._guarded(function) for path, function in reading.items()},
            **{("POST", path): self._guarded(function) for path, function in acting.items()},
        }

    def _guarded(self, function: Callable[[HttpRequest], Response]) -> Callable[[HttpRequest], Response]:
        def answer(request: HttpRequest) -> Response:
            asked = request.query.get("id")
            if asked and asked[0] != self._told()["id"]:  # whose coordinator had this port before
                return refused(404, "this is another run than the one that is asked for")
            if not self._has_token(request):
                return refused(401, f"give the run's token; it is in {self._folder / 'token'}, or ROOKERY_TOKEN")
            return function(request)

        return answer

    def _has_token(self, request: HttpRequest) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = given or cookie_of(request)
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _session(self, request: HttpRequest) -> Response:
        """The token for a cookie, which scripts and other sites cannot read or send."""
        if not hmac.compare_digest(request.body.strip(), self.token.encode()):
            return refused(401, "this is not the token of this run")
        return keep_cookie(request, self.token)

    def _view(self) -> dict[str, Any]:
        steps, newest = self._history.newest
        return {
            "run": self._folder.name,
            **self._told(),
            "measures": self._history.measures(),
            "point": {"step": steps, "values": newest},
        }

    def _curves(self, request: HttpRequest) -> Response:
        """Measure -> policy -> its curve, of all that are asked for; of another `run` in the same folder, if one is."""
        run = request.query.get("run", [""])[0]
        history = self._siblings.history(run) if run else self._history
        if history is None:
            return refused(404, f"there is no run {run!r} with measurements beside this one")
        return as_json(
            {
                measure: {
                    name: {"steps": steps, "values": values}
                    for name, (steps, values) in history.curves(measure).items()
                }
                for measure in request.query.get("measure", ())
            }
        )

    def _log(self, request: HttpRequest) -> Response:
        """The end of a worker's log."""
        worker = request.query.get("worker", [""])[0]
        path = self._logs / f"{worker}.log"
        if not _WORKER.fullmatch(worker) or not path.is_file():
            return refused(404, f"no log of {worker!r} can be seen from the coordinator")
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            return Response(file.read().split(b"\n", 1)[-1] if size > _LOG_BYTES else file.read())

    def _events(self, request: HttpRequest) -> Response:
        return Response(self._stream(request), "text/event-stream")

    def _stream(self, request: HttpRequest) -> Iterator[bytes]:
        sent, said = b"", time.monotonic()
        while not request.ending.is_set():
            view = self._encoded()
            if view != sent:
                sent, said = view, time.monotonic()
                yield b"event: view\ndata: " + view + b"\n\n"
            elif time.monotonic() - said > _ALIVE:
                said = time.monotonic()
                yield b": nothing new\n\n"
            request.ending.wait(_LOOK)
        yield b"event: view\ndata: " + self._encoded() + b"\n\n"  # the last, of the stage in which the run ended

    def _encoded(self) -> bytes:
        """The view, encoded once for all who listen."""
        told = self._told()
        workers, stage = told.get("workers"), (told["stage"], told["paused"])
        if self._last[0] is not workers or self._last[1] != stage:  # every look makes a new list
            self._last = (workers, stage, json_bytes(self._view()))
        return self._last[2]


def token_of(folder: Path) -> str:
    """What lets people act on the run; ConfigurationError for one that cannot be."""
    if given := os.environ.get("ROOKERY_TOKEN", "").strip():
        if not _TOKEN.fullmatch(given):  # goes into headers and a cookie
            raise ConfigurationError("token_malformed", variable="ROOKERY_TOKEN")
        return given
    path = folder / "token"
    if path.is_file() and (kept := path.read_text().strip()):  # empty: its writer died, and everybody has ""
        return kept
    token = secrets.token_hex(16)
    aside = folder / ".token"
    aside.unlink(missing_ok=True)  # of one that died meanwhile
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    aside.rename(path)
    return token


def _order(function: Callable[[], None]) -> Callable[[HttpRequest], Response]:
    def answer(_request: HttpRequest) -> Response:
        function()
        return as_json({"ok": True})

    return answer


def _answering(function: Callable[[HttpRequest], object]) -> Callable[[HttpRequest], Response]:
    """What it returns as JSON, or in one sentence why there is nothing."""

    def answer(request: HttpRequest) -> Response:
        try:
            return as_json(function(request))
        except RookeryError as fault:
            return refused(400 if isinstance(fault, ConfigurationError) else 409, fault.coded)

    return answer


def _command(roster: Roster) -> Callable[[HttpRequest], Response]:
    """Its line of the history."""

    def written(request: HttpRequest) -> dict[str, Any]:
        words, by, weights = _words_in(request.body)
        return roster.commands[roster.command(words, by, request.peer, weights) - 1]

    return _answering(written)


def _part(sent: SentWeights) -> Callable[[HttpRequest], Response]:
    """Bytes that there are of the file with this `sha256`, after those that come here were added at their `offset`."""

    def added(request: HttpRequest) -> dict[str, int]:
        offset, sha256 = (request.query.get(key, [""])[0] for key in ("offset", "sha256"))
        if not re.fullmatch("[0-9]{1,12}", offset):
            raise ConfigurationError("roster_request_malformed")
        return {"size": sent.add(sha256, int(offset), request.body)}

    return _answering(added)


def _words_in(body: bytes) -> tuple[list[str], str, str]:
    """The words of a command, who says them, and the SHA-256 of the weights that go with it, if any do."""
    try:
        told = json.loads(body)
        words, by, weights = told["words"], told["by"], told.get("weights", "")
    except (ValueError, TypeError, KeyError, RecursionError):
        words, by, weights = None, None, None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in [*words, by, weights]):
        raise ConfigurationError("roster_request_malformed")
    return words, str(by), str(weights)


def _plotly(_request: HttpRequest) -> Response:
    """The library that draws curves, from the package that brings it."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        return refused(404, f"no curves without plotly; run: {install('dashboard')}")
    path = Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return Response(path.read_bytes(), KINDS[".js"], headers={"Cache-Control": "max-age=86400"})


_BYTES = 32 * 2**20
"""Of measurements that are read: the coordinator has something else to do."""
_MOST = 100
_KEPT = 8


class Siblings:
    """Those of the run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._lock = threading.Lock()
        self._read: dict[str, tuple[tuple[int, int], History]] = {}
        """Name -> (size and time of what was read, its curves)."""

    def names(self) -> list[str]:
        """The newest first, a hundred at most."""
        found = [(path.lstat().st_mtime, path.name) for path in self._folder.parent.iterdir() if self._shows(path)]
        return [name for _, name in sorted(found, reverse=True)[:_MOST]]

    def history(self, name: str) -> History | None:
        """The curves of a run, called with its name; None if there is none of that name."""
        if name not in self.names():
            return None
        folder = self._folder.parent / name
        try:
            status = (folder / "metrics.jsonl").stat()
            state = status.st_size, status.st_mtime_ns
            with self._lock:
                known = self._read.pop(name, None)
                if known is None or known[0] != state:
                    history = History()
                    history.read(folder / "metrics.jsonl", of=name)
                    known = (state, history)
                self._read[name] = known  # the newest last
                while len(self._read) > _KEPT:
                    del self._read[next(iter(self._read))]
        except OSError:
            return None  # it was removed meanwhile
        return known[1]

    def _shows(self, folder: Path) -> bool:
        files = [folder / "config.yaml", folder / "metrics.jsonl"]
        if folder == self._folder or any(path.is_symlink() for path in (folder, *files)):
            return False
        return all(path.is_file() for path in files) and 0 < files[1].stat().st_size <= _BYTES
