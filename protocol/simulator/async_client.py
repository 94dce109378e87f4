"""The client for simulators that run in asyncio: the same verbs, awaited.

    async with AsyncSimulator("tcp://127.0.0.1:5700", "sim-0") as sim:
        action = await sim.act(observation)

Each has a thread of its own, in which its connection is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from protocol.simulator.client import Simulator
from protocol.spaces import World

__all__ = ["AsyncSimulator"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


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

    async def act(
        self,
        observation: Any,
        reward: float = 0.0,
        *,
        mask: Any = None,
        agent: str = "",
        elements: Sequence[str] = (),
        clock: float = 0.0,
    ) -> Any:
        """See `Simulator.act`."""
        given = {"mask": mask, "agent": agent, "elements": elements, "clock": clock}
        return await self._run(lambda: self._sim.act(observation, reward, **given))

    async def act_all(
        self,
        observations: Mapping[str, Any],
        rewards: Mapping[str, float] | None = None,
        masks: Mapping[str, Any] | None = None,
        *,
        elements: Sequence[str] = (),
        clock: float = 0.0,
    ) -> dict[str, Any] | None:
        """See `Simulator.act_all`."""
        return await self._run(self._sim.act_all, observations, rewards, masks, elements=elements, clock=clock)

    async def end_episode(
        self, reward: float = 0.0, *, truncated: bool = False, observation: Any = None, agent: str = ""
    ) -> None:
        """See `Simulator.end_episode`."""
        await self._run(self._sim.end_episode, reward, truncated=truncated, observation=observation, agent=agent)

    async def end_all(
        self,
        rewards: Mapping[str, float],
        *,
        truncated: bool = False,
        observations: Mapping[str, Any] | None = None,
        over: bool = True,
    ) -> None:
        """See `Simulator.end_all`."""
        await self._run(self._sim.end_all, rewards, truncated=truncated, observations=observations, over=over)

    async def begin(self) -> int:
        """See `Simulator.begin`."""
        return await self._run(self._sim.begin)

    async def ping(self) -> str:
        """See `Simulator.ping`."""
        return await self._run(self._sim.ping)

    async def _run(self, verb: Callable[_P, _T], *given: _P.args, **named: _P.kwargs) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: verb(*given, **named))
