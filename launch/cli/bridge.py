"""`rookery bridge`: simulators in a browser, which know no ZeroMQ, speak with actors over a WebSocket.

In flows: messages of simulators, each a message of a WebSocket; messages of an actor. Out flows: the same, passed on.
What they say is not looked at: a simulator here is one as any other to its actor. Each frame of a message is its
length, 4 bytes, little-endian, and itself (protocol/README.md, Over a WebSocket).
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click
import zmq
from zmq.asyncio import Socket

from protocol.config.yaml_file import check_run_folder
from protocol.errors import ConfigurationError, one_sentence
from protocol.errors.distribution import install
from protocol.simulator.connection import addresses_of, ended, simulator_context
from protocol.transport.sockets import connect, is_loopback

try:
    from websockets.asyncio.server import Request, Response, ServerConnection, serve
    from websockets.exceptions import ConnectionClosed
    from websockets.typing import Origin
except ImportError:
    click.echo(f"rookery: a bridge needs the package websockets; run: {install('bridge')}", err=True)
    sys.exit(ConfigurationError.exit_code)

_LARGEST = 2**24
"""Bytes of a message."""
_MOST = 256
"""Simulators at a time."""
_LOOK_EVERY = 1.0
"""Seconds from one look to the next at where a run's actors are."""
_HERE = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
"""The pages that may speak unless others are named: those of this machine."""


def framed(frames: Sequence[bytes]) -> bytes:
    """Frames of ZeroMQ as one message of a WebSocket."""
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


def frames_in(message: bytes) -> list[bytes]:
    """The opposite; ValueError for what is none."""
    frames, at = [], 0
    while at < len(message):
        if len(message) - at < 4 or (size := struct.unpack_from("<I", message, at)[0]) > len(message) - at - 4:
            raise ValueError("its frames do not fill it")
        frames.append(message[at + 4 : at + 4 + size])
        at += 4 + size
    if not frames:
        raise ValueError("it has no frame")
    return frames


class _Bridge:
    """To the actors at `endpoint`."""

    def __init__(self, endpoint: str, keys: str) -> None:
        self._endpoint = endpoint
        self._context = simulator_context(endpoint, keys)
        self._taken: Counter[str] = Counter()
        self.token = secrets.token_urlsafe(16)

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        """Nobody without the token, which pages of others do not know either."""
        given = parse_qs(urlsplit(request.path).query).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "give the token that the bridge printed\n")
        if self._taken.total() >= _MOST:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many simulators\n")
        return None

    async def pass_on(self, page: ServerConnection) -> None:
        """One simulator's, until it goes, or its actor is elsewhere."""
        known = addresses_of(self._endpoint)
        if not known:
            await page.close(1013, "no actor serves yet; try again")
            return
        address = min(known, key=lambda one: self._taken[one])
        self._taken[address] += 1
        dealer = connect(self._context, zmq.DEALER, address, queue=False, server="actor")
        await asyncio.to_thread(dealer.poll, round(1_000 * _LOOK_EVERY), zmq.POLLOUT)
        actor = Socket.from_socket(dealer)
        tasks = [asyncio.create_task(one) for one in (_to(page, actor), _from(page, actor), self._stay(address))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (fault := task.exception()) is not None and not isinstance(fault, ConnectionClosed):
                    await page.close(1003, str(fault)[:100])
            await page.close(1012, "the actor is elsewhere; connect anew")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            actor.close(linger=0)
            self._taken[address] -= 1

    async def _stay(self, address: str) -> None:
        while address in addresses_of(self._endpoint):
            await asyncio.sleep(_LOOK_EVERY)

    def close(self) -> None:
        """Ends all."""
        self._context.destroy(linger=0)


async def _to(page: ServerConnection, actor: Socket) -> None:
    async for message in page:
        if isinstance(message, str):
            raise ValueError("text; say it in bytes")
        with suppress(zmq.Again):  # the actor is away: the next ping, or hello, tells whether it knows of it
            await actor.send_multipart(frames_in(message), zmq.NOBLOCK)


async def _from(page: ServerConnection, actor: Socket) -> None:
    while True:
        await page.send(framed(await actor.recv_multipart()))


async def _serve(bridge: _Bridge, host: str, port: int, origins: Sequence[Origin | re.Pattern[str] | None]) -> None:
    try:
        server = await serve(
            bridge.pass_on,
            host,
            port,
            origins=origins,
            max_size=_LARGEST,
            process_request=bridge.check,
            compression=None,
        )
    except OSError as fault:
        raise ConfigurationError("bridge_not_bindable", value=f"{host}:{port}", reason=fault.strerror) from None
    async with server:
        bound = next(iter(server.sockets)).getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"simulators connect to ws://{shown}:{bound}/?token={bridge.token}   (Ctrl-C ends it)")
        await server.serve_forever()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("endpoint", metavar="RUN or ADDRESS")
@click.option("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="Where, on loopback; default: a free port.")
@click.option("--origin", "origins", multiple=True, help="A site whose pages may connect; default: this machine's.")
@click.option("--keys", default="", metavar="DIR", help="Keys, as of `rookery simulate`.")
def bridge(endpoint: str, listen: str, origins: tuple[str, ...], keys: str) -> None:
    """Lets simulators that run in a browser of this machine take part in a run.

    \b
    rookery bridge runs/carts
    rookery bridge 'tcp://127.0.0.1:5700?keys=…' --origin https://game.example
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or not is_loopback(host.strip("[]")):
        raise ConfigurationError("bridge_not_on_loopback", value=listen)
    if "://" not in endpoint:
        check_run_folder(Path(endpoint))
        if ended(endpoint):
            raise ConfigurationError("bridge_run_over", file=Path(endpoint))
    allowed: list[Origin | re.Pattern[str] | None] = [Origin(one) for one in origins] or [_HERE]
    passing = _Bridge(endpoint, keys)
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(passing, host.strip("[]"), int(port), [*allowed, None]))
    finally:
        passing.close()


def main() -> None:
    """The command; every error of ours is one sentence and its own exit code."""
    with one_sentence():
        bridge(prog_name="rookery bridge")


if __name__ == "__main__":
    main()
