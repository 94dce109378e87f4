"""The client for simulators that run in asyncio: the same verbs, awaited.

    async with AsyncSimulator("tcp://127.0.0.1:5700", "sim-0") as sim:
        action = await sim.act(observation)

Each has a thread of its own, in which its connection is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from protocol.simulator.client import Simulator
from protocol.spaces import World

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _awaited(
    verb: Callable[Concatenate[Simulator, _P], _T],
) -> Callable[Concatenate[AsyncSimulator, _P], Coroutine[Any, Any, _T]]:
    """A verb of `Simulator`, in the thread of its own."""

    @wraps(verb)
    async def awaited(self: AsyncSimulator, *given: _P.args, **named: _P.kwargs) -> _T:
        return await self._run(verb, self._sim, *given, **named)

    return awaited


class AsyncSimulator:
    """`Simulator`, whose options these are."""

    def __init__(self, endpoint: str | Path, name: str, **options: Any) -> None:
        self._sim = Simulator(endpoint, name, **options)
        self._thread = ThreadPoolExecutor(1, f"simulator {name}")

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._sim.__enter__)
        except BaseException:  # cancelled: its thread may be connecting yet, and hangs up when it has
            self._thread.submit(self._sim.close)
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._run(self._sim.__exit__, kind, fault, trace)
        finally:
            self._thread.shutdown(wait=False)

    @property
    def world(self) -> World:
        """The agents and spaces of the run."""
        return self._sim.world

    act = _awaited(Simulator.act)
    act_all = _awaited(Simulator.act_all)
    end_episode = _awaited(Simulator.end_episode)
    end_all = _awaited(Simulator.end_all)
    begin = _awaited(Simulator.begin)
    ping = _awaited(Simulator.ping)

    async def _run(self, verb: Callable[_P, _T], *given: _P.args, **named: _P.kwargs) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: verb(*given, **named))
