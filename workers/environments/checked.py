"""A guard around any environment: what raises inside, or contradicts the declared spaces, becomes one clear sentence.

In flow: the turns of another environment. Out flow: the same turns, or an EnvironmentFault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.layout import common_of
from workers.environments.base import Environment, Episodes, Outcome, Player, Present, Turn

__all__ = ["Checked"]

_Told = Present | Outcome


class Checked(Environment):
    """Passes every turn of `inner` on after checking it; costs a few microseconds an agent."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.world = inner.world
        self.copies, self.groups = inner.copies, inner.groups
        self._rows = inner.copies // inner.groups
        self._expected = [((*a.observation.shape,), np.dtype(a.observation.dtype)) for a in inner.world.agents]
        common = common_of(inner.world)
        self._common = None if common is None else (tuple(common.shape), np.dtype(common.dtype))

    def reset(self, seed: int) -> Turn:
        """As the environment's; EnvironmentFault naming environment and cause if it raises or returns wrong data."""
        return self._guarded("reset", lambda: self._inner.reset(seed))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """As the environment's; EnvironmentFault naming environment and cause if it raises or returns wrong data."""
        return self._guarded("step", lambda: self._inner.step(actions))

    def conclude(self) -> tuple[Outcome, ...]:
        """As the environment's; EnvironmentFault naming environment and cause if it raises or returns wrong data."""
        outcomes: tuple[Outcome, ...] = self._run("conclude", self._inner.conclude)
        for outcome in outcomes:
            self._check(outcome)
        return outcomes

    def take_episodes(self) -> Episodes:
        """As the environment's."""
        return self._inner.take_episodes()

    def scripted(self) -> Player | None:
        """As the environment's."""
        return self._inner.scripted()

    def close(self) -> None:
        """Closes the environment; EnvironmentFault if that raises."""
        self._run("close", self._inner.close)

    def _guarded(self, verb: str, call: Callable[[], Turn]) -> Turn:
        turn = self._run(verb, call)
        self.restarts = self._inner.restarts
        if not isinstance(turn, Turn):
            raise EnvironmentFault(f"{self.world.id} returned {type(turn).__name__} from {verb}; let it return a Turn")
        # Sums of infinities and of very large numbers are looked into below: numpy need not warn of them.
        with np.errstate(invalid="ignore", over="ignore"):
            for present in turn.present:
                self._check(present)
            for outcome in turn.outcomes:
                self._check(outcome)
            self._check_common(turn.common, "common", self._rows)
        return turn

    def _run(self, verb: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EnvironmentFault:
            raise
        except Exception as fault:
            text = " ".join(f"{type(fault).__name__}: {fault}".split())
            raise EnvironmentFault(
                f"{self.world.id} raised in {verb} ({text}); correct the environment, the traceback tells where"
            ) from fault

    def _check(self, told: _Told) -> None:
        agents = self.world.agents
        if not 0 <= told.agent < len(agents):
            raise EnvironmentFault(
                f"{self.world.id} tells of agent number {told.agent} but has agents 0 to {len(agents) - 1}; "
                "correct the environment"
            )
        shape, dtype = self._expected[told.agent]
        copies = told.copies
        n = self._rows if copies is None else len(copies)
        if copies is not None:
            self._array(told, "copies", copies, (n,), np.dtype(np.int64))
            if n and not (copies[0] >= 0 and copies[-1] < self._rows and (copies[1:] > copies[:-1]).all()):
                raise self._fault(told, "copies", f"increasing numbers in 0..{self._rows - 1}", str(copies))
        if isinstance(told, Present):
            self._array(told, "observation", told.observation, (n, *shape), dtype)
            self._finite(told, "observation", told.observation)
        self._array(told, "reward", told.reward, (n,), np.dtype(np.float32))
        self._array(told, "terminated", told.terminated, (n,), np.dtype(np.bool_))
        self._array(told, "truncated", told.truncated, (n,), np.dtype(np.bool_))
        self._finite(told, "reward", told.reward)
        self._check_final(told, shape, dtype)

    def _check_final(self, told: _Told, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """A final observation for every truncated row, and for no other."""
        index, final = told.final_index, told.final_observation
        m = len(index)
        if m == 0 and final is None and not told.truncated.any():
            return
        if not np.array_equal(np.flatnonzero(told.truncated), index):
            expected = f"the truncated rows {np.flatnonzero(told.truncated)}"
            raise self._fault(told, "final_index", expected, str(index))
        if m == 0:
            return
        self._array(told, "final_observation", final, (m, *shape), dtype)
        assert final is not None
        self._finite(told, "final_observation", final)
        self._check_common(told.final_common, "final_common", m)

    def _check_common(self, got: Any, field: str, rows: int) -> None:
        """What all agents see, in `rows` copies; None where the world has nothing like that."""
        if self._common is None and got is None:
            return
        expected = "nothing, as the world has no common observation"
        if self._common is not None:
            shape, dtype = (rows, *self._common[0]), self._common[1]
            expected = f"an array {dtype}{list(shape)}"
            if isinstance(got, np.ndarray) and got.shape == shape and got.dtype == dtype:
                if got.dtype.kind != "f" or np.isfinite(got.sum()) or np.isfinite(got).all():
                    return
                expected = "finite"
        said = f"{got.dtype}{list(got.shape)}" if isinstance(got, np.ndarray) else type(got).__name__
        said = "not" if expected == "finite" else said
        raise EnvironmentFault(f"{self.world.id}: {field} should be {expected} but is {said}; correct the environment")

    def _array(self, told: _Told, field: str, got: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if not isinstance(got, np.ndarray):
            raise self._fault(told, field, f"an array {dtype}{list(shape)}", type(got).__name__)
        if got.shape != shape or got.dtype != dtype:
            raise self._fault(told, field, f"{dtype}{list(shape)}", f"{got.dtype}{list(got.shape)}")

    def _finite(self, told: _Told, field: str, got: NDArray[Any]) -> None:
        # One NaN or infinity makes the sum NaN or infinite; a sum that merely overflowed is looked at in full.
        if got.dtype.kind != "f" or np.isfinite(got.sum()) or np.isfinite(got).all():
            return
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(got))[0])
        raise self._fault(told, field, "finite numbers", f"{got[where]} at {list(where)}")

    def _fault(self, told: _Told, field: str, expected: str, got: str) -> EnvironmentFault:
        agent = self.world.agents[told.agent].name
        return EnvironmentFault(
            f"{self.world.id}, agent {agent}: {field} should be {expected} but is {got}; correct the environment"
        )
