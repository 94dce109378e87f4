"""A simulator in a real browser, through `rookery bridge`; and whom the bridge lets in, and what it passes on."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from launch.cli.bridge import bridge as command
from launch.cli.bridge import framed, frames_in
from protocol.errors import ConfigurationError
from protocol.messages.codec import decode, encode
from protocol.messages.simulator import Admit, Hello
from protocol.spaces import Agent, Box, Discrete, World
from protocol.transport.curve import new_keys
from protocol.transport.sockets import open_context
from tests.clients.languages import CLIENTS
from tests.faults import raises
from tests.waiting import until
from tests.workers.coordination.dashboard.browser import browser
from tests.workers.environments.simulators.serving import serving

pytestmark = pytest.mark.usefixtures("forked_rookery")
CART = World(id="cart", agents=(Agent(name="cart", observation=Box(shape=(4,)), action=Discrete(n=2)),))


@contextmanager
def bridged(endpoint: str, *options: str) -> Iterator[str]:
    """The address that the command prints."""
    words = ["rookery", "bridge", endpoint, *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert " ws://" in said, said + process.stdout.read()
            yield said.split()[3]
        finally:
            process.kill()


@contextmanager
def pages(folder: Path) -> Iterator[str]:
    """The files of a folder, on loopback."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_page_plays(tmp_path: Path) -> None:
    """The example, in Chromium."""
    with (
        serving(CART) as served,
        bridged(served.address) as address,
        pages(CLIENTS / "javascript") as site,
        browser(tmp_path) as window,
    ):
        window.open(f"{site}/cartpole.html#{address}")
        until(lambda: sum(row.end == "terminated" for row in served.rows("cart")) > 2, what="episodes end")
        assert all(row.reward in (0.0, 1.0) for row in served.rows("cart"))
        assert int(window.text("said").split()[0]) > 10


def test_a_simulator_is_let_in_with_the_keys_of_the_run(tmp_path: Path) -> None:
    new_keys(tmp_path / "keys")
    hello = Hello(name="page", token="t")
    keys = str(tmp_path / "keys")
    context = open_context(keys, "actor")
    with (
        serving(CART, context=context) as served,
        bridged(served.address, "--keys", keys) as address,
        connect(address) as page,
    ):

        def answer() -> object:
            page.send(framed([encode(hello)]))
            try:
                said = page.recv(timeout=1)
            except TimeoutError:  # the bridge's own connection was not there yet
                return None
            assert isinstance(said, bytes)
            return decode(frames_in(said))[0]

        assert isinstance(until(answer, what="an answer"), Admit)
    context.destroy(linger=0)


@pytest.mark.parametrize(
    ("options", "origin", "token", "status"),
    [
        ([], "http://localhost:8000", None, None),
        ([], None, None, None),
        ([], "https://evil.example", None, 403),
        ([], "http://localhost.evil.example", None, 403),
        ([], "null", None, 403),
        ([], None, "wrong", 401),
        (["--origin", "https://game.example"], "https://game.example", None, None),
        (["--origin", "https://game.example"], "http://localhost:8000", None, 403),
    ],
)
def test_pages_of_others_and_who_has_no_token_are_not_let_in(
    options: list[str], origin: str | None, token: str | None, status: int | None
) -> None:
    with bridged("tcp://127.0.0.1:9", *options) as address:
        asked = address if token is None else address.replace(address.rpartition("=")[2], token)
        if status is None:
            with connect(asked, origin=origin):  # type: ignore[arg-type]
                return
        with pytest.raises(InvalidStatus) as refused:
            connect(asked, origin=origin)  # type: ignore[arg-type]
        assert refused.value.response.status_code == status


@pytest.mark.parametrize(
    ("message", "code"),
    [("text", 1003), (b"", 1003), (b"\x05\0\0\0abc", 1003), (b"\x05\0", 1003), (bytes(2**24 + 1), 1009)],
)
def test_what_is_no_message_ends_the_connection(message: str | bytes, code: int) -> None:
    with bridged("tcp://127.0.0.1:9") as address, connect(address) as page:
        page.send(message)
        with pytest.raises(ConnectionClosed) as ended:
            page.recv(timeout=60)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == code


@pytest.mark.parametrize(
    ("left", "kind"), [([], "folder_without_config"), (["config.yaml", "summary.json"], "bridge_run_over")]
)
def test_a_bridge_leads_to_a_run_that_goes_on(tmp_path: Path, left: list[str], kind: str) -> None:
    for name in left:
        (tmp_path / name).write_text("{}")
    with raises(ConfigurationError, kind, file=tmp_path):
        CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)


def test_who_comes_before_an_actor_serves_is_told_to_try_again(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    with bridged(str(tmp_path)) as address, connect(address) as page, pytest.raises(ConnectionClosed) as ended:
        page.recv(timeout=60)
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == 1013


@pytest.mark.parametrize("where", ["0.0.0.0:8765", "10.0.0.1:8765", "127.0.0.1", "[::]:1"])
def test_a_bridge_listens_on_loopback_alone(where: str) -> None:
    with raises(ConfigurationError, "bridge_not_on_loopback", value=where):
        CliRunner().invoke(command, ["tcp://127.0.0.1:9", "--listen", where], catch_exceptions=False)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_frames_are_what_they_were(frames: list[bytes]) -> None:
    assert frames_in(framed(frames)) == frames
