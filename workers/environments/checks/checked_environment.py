"""A guard around any environment: what raises inside, or contradicts the declared spaces, becomes one clear sentence.

In flows: actions, which are checked before the environment has them, and the turns of another environment. Out flow:
the same turns, or an EnvironmentFault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.errors.origin import blame, is_users
from protocol.experience.layout import common_of
from protocol.spaces import Place, dtype_of
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn, WrappedEnvironment
from workers.environments.checks.closing import close_logged
from workers.environments.checks.fast_path import FastCheck
from workers.environments.checks.payoff_check import PayoffCheck, declares_payoffs
from workers.environments.checks.row_checks import (
    ActionRows,
    MaskRows,
    Mismatch,
    RowCheck,
    flaw_of_numbers,
    flaw_of_shape,
)
from workers.runtime.state_capture import State

_Told = AgentTimeStep | AgentOutcome
_COPIES, _REWARD, _END = np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.bool_)
_CLOCK = np.dtype(np.float64)


class CheckedEnvironment(WrappedEnvironment):
    """Passes every turn of `inner` on after checking it; costs a few microseconds an agent."""

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner)
        self.wants_preview = inner.wants_preview
        self._agents = [_Expected(place, inner.copies // inner.groups) for place in inner.world.places]
        self._glances = [FastCheck(place, inner.copies // inner.groups) for place in inner.world.places]
        common = common_of(inner.world)
        self._common = None if common is None else (tuple(common.shape), dtype_of(common))
        bound = range(inner.groups) if declares_payoffs(inner.world) else ()
        self._fairness = [PayoffCheck(inner.world, inner.copies // inner.groups) for _ in bound]
        """By group, where the world declares payoffs."""
        self._turn: Turn | None = None
        """The last one, whose agents act next."""
        self._prechecked: Sequence[NDArray[Any]] | None = None
        """Actions that were checked before the step."""

    @property
    def inner(self) -> Environment:
        """What is guarded."""
        return self._inner

    def reset(self, seed: int) -> Turn:
        """As the environment's; EnvironmentFault naming environment and cause if it raises or returns wrong data."""
        for fairness in self._fairness:
            fairness.begin()
        self._turn = None
        return self._checked("reset", self._run("reset", seed))

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """As the environment's; EnvironmentFault naming environment and cause if it raises or returns wrong data, if
        an action is outside its space or illegal, and for a step before the reset."""
        if actions is not self._prechecked:
            self._check_actions(actions)
        self._prechecked = self._turn = None
        try:
            turn = self._inner.step(actions)
        except BaseException as fault:
            self._blame("step", fault)
            raise
        return self._checked("step", turn)

    def preview_actions(self, actions: Sequence[NDArray[Any]]) -> None:
        """As the environment's; EnvironmentFault as `step`'s."""
        self._check_actions(actions)
        self._prechecked = actions
        self._run("preview_actions", actions)

    def set_state(self, state: State) -> None:
        """As the environment's, with what was told last, whose arrays may be the environment's own."""
        self._turn = None
        super().set_state(state)

    def flush_ends(self) -> tuple[AgentOutcome, ...]:
        """As the environment's; EnvironmentFault naming environment and cause if it raises or returns wrong data."""
        outcomes: tuple[AgentOutcome, ...] = self._run("flush_ends")
        for outcome in outcomes:
            self._check(outcome)
        return outcomes

    def close(self) -> None:
        """Closes the environment. What that raises is logged with its place: a run has lost nothing by it."""
        close_logged(self.world.id, self._inner.close)

    def _checked(self, verb: str, turn: Any) -> Turn:
        """`turn`, once it is checked."""
        self.restarts = self._inner.restarts
        if not isinstance(turn, Turn):
            raise EnvironmentFault(
                "turn_not_returned", environment=self.world.id, value=type(turn).__name__, method=verb
            )
        if self._inner.world is not self.world and self._inner.world != self.world:
            raise self._changed(verb)
        if len(turn.present) > 1 or len(turn.outcomes) > 1:
            self._check_once(turn)
        count = len(self._glances)
        for present in turn.present:
            if not (0 <= present.agent < count and self._glances[present.agent].is_valid_turn(present)):
                self._check(present)
        for outcome in turn.outcomes:
            self._check(outcome)
        if turn.common is not None or self._common is not None:
            self._check_common(turn.common, "common", self.copies // self.groups)
        if self._fairness:
            self._fairness[turn.group].check(turn)
        self._turn = turn
        return turn

    def _changed(self, verb: str) -> EnvironmentFault:
        """Other agents or spaces than were declared at first: the first that differs."""
        got = {place.name: place.agent for place in self._inner.world.places}
        for place in self.world.places:
            if got.get(place.name) != place.agent:
                said = got[place.name].model_dump_json() if place.name in got else "missing"
                where, expected = f"{self.world.id}, agent {place.name}", place.agent.model_dump_json()
                return EnvironmentFault("space_changed", where=where, field="its spaces", expected=expected, value=said)
        return EnvironmentFault("world_changed", environment=self.world.id, method=verb)

    def _check_once(self, turn: Turn) -> None:
        """No agent is in two entries of a kind."""
        for what, told in (("present", turn.present), ("outcomes", turn.outcomes)):
            if len(told) > 1 and len({one.agent for one in told}) < len(told):
                agents = [one.agent for one in told]
                raise EnvironmentFault("agent_repeated_in_turn", environment=self.world.id, field=what, agents=agents)

    def _run(self, verb: str, *arguments: Any) -> Any:
        """What method `verb` of the environment returns."""
        try:
            return super()._run(verb, *arguments)
        except BaseException as fault:
            self._blame(verb, fault)
            raise

    def _blame(self, verb: str, fault: BaseException) -> None:
        """EnvironmentFault where method `verb` of the environment raised something else: also for a world that exits,
        which must not end a worker as if it had chosen to."""
        if is_users(fault) and not isinstance(fault, EnvironmentFault):
            facts = blame(fault)
            raise EnvironmentFault("environment_raised", environment=self.world.id, method=verb, **facts) from fault

    def _check_actions(self, actions: Sequence[NDArray[Any]]) -> None:
        turn = self._turn
        if turn is None:
            raise EnvironmentFault("step_before_reset", environment=self.world.id)
        if len(actions) != len(turn.present):
            raise EnvironmentFault(
                "actions_count_mismatch", environment=self.world.id, expected=len(turn.present), value=len(actions)
            )
        for present, chosen in zip(turn.present, actions, strict=True):
            if self._glances[present.agent].are_valid_actions(chosen, present.copies):
                continue
            expected = self._agents[present.agent]
            n = expected.rows if present.copies is None else len(present.copies)
            flaw = expected.acted.flaw("action", chosen, n, present.action_mask)
            if flaw is not None:
                raise EnvironmentFault("action_invalid", **self._facts(present.agent, flaw))

    def _check(self, told: _Told) -> None:
        if not 0 <= told.agent < len(self._agents):
            raise EnvironmentFault(
                "agent_number_unknown", environment=self.world.id, value=told.agent, limit=len(self._agents) - 1
            )
        expected = self._agents[told.agent]
        flaw = expected.flaw(told)
        if flaw is not None:
            raise EnvironmentFault("agent_data_invalid", **self._facts(told.agent, flaw))
        if len(told.final_index):
            self._check_common(told.final_common, "final_common", len(told.final_index))

    def _check_common(self, got: Any, field: str, rows: int) -> None:
        """What all agents see, in `rows` copies; None where the world has nothing like that."""
        if self._common is None and got is None:
            return
        flaw: Mismatch | None = Mismatch(field, "nothing, as the world has no common observation", _said(got))
        if self._common is not None:
            shape, dtype = (rows, *self._common[0]), self._common[1]
            flaw = flaw_of_shape(field, got, shape, dtype) or flaw_of_numbers(field, got)
        if flaw is not None:
            raise EnvironmentFault(
                "world_data_invalid",
                environment=self.world.id,
                field=flaw.field,
                expected=flaw.expected,
                value=flaw.got,
            )

    def _facts(self, agent: int, flaw: Mismatch) -> dict[str, str]:
        facts = {"environment": self.world.id, "agent": self.world.agents[agent].name}
        return facts | {"field": flaw.field, "expected": flaw.expected, "value": flaw.got}


class _Expected:
    """What one agent must be told, in a group of `copies` copies."""

    def __init__(self, place: Place, copies: int) -> None:
        self.rows = copies * place.many
        self.acted = ActionRows(place)
        self._observed = RowCheck(place.observed)
        self._masked = None if place.masked is None else MaskRows(place.masked, place.acted)

    def flaw(self, told: _Told) -> Mismatch | None:
        """The first one."""
        copies = told.copies
        n = self.rows
        if copies is not None:
            flaw = self._flaw_of_copies(copies)
            if flaw is not None:
                return flaw
            n = len(copies)
        if isinstance(told, AgentTimeStep):
            flaw = self._observed.flaw("observation", told.observation, n) or self._flaw_of_mask(told.action_mask, n)
            if flaw is None and told.clock is not None:
                flaw = flaw_of_shape("clock", told.clock, (n,), _CLOCK) or flaw_of_numbers("clock", told.clock)
            if flaw is not None:
                return flaw
        return (
            flaw_of_shape("reward", told.reward, (n,), _REWARD)
            or flaw_of_shape("terminated", told.terminated, (n,), _END)
            or flaw_of_shape("truncated", told.truncated, (n,), _END)
            or flaw_of_numbers("reward", told.reward)
            or self._flaw_of_finals(told)
        )

    def _flaw_of_copies(self, copies: Any) -> Mismatch | None:
        if not isinstance(copies, np.ndarray) or copies.ndim != 1 or copies.dtype != _COPIES:
            return Mismatch("copies", "int64[n]", _said(copies))
        if len(copies) and not (copies[0] >= 0 and copies[-1] < self.rows and (copies[1:] > copies[:-1]).all()):
            return Mismatch("copies", f"increasing numbers in 0..{self.rows - 1}", str(copies))
        return None

    def _flaw_of_mask(self, mask: Any, n: int) -> Mismatch | None:
        """A mask where the agent has one, and only there."""
        if self._masked is not None:
            return self._masked.flaw("action_mask", mask, n)
        return None if mask is None else Mismatch("action_mask", "None, as the agent has none", _said(mask))

    def _flaw_of_finals(self, told: _Told) -> Mismatch | None:
        """A final observation for every truncated row, and for no other."""
        index, final = told.final_index, told.final_observation
        if not len(index) and final is None and not told.truncated.any():
            return None
        if not np.array_equal(np.flatnonzero(told.truncated), index):
            return Mismatch("final_index", f"the truncated rows {np.flatnonzero(told.truncated)}", str(index))
        return self._observed.flaw("final_observation", final, len(index)) if len(index) else None


def _said(got: Any) -> str:
    return f"{got.dtype}{list(got.shape)}" if isinstance(got, np.ndarray) else type(got).__name__
