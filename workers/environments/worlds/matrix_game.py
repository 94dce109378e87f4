"""Repeated matrix games with known solutions; many copies at once in numpy.

In flow: one action a player. Out flow: the payoffs of the joint action, and, if asked for, what was played last.

Legend: `E` copies, `P` players, `n` some of the copies.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, DictPopulation, Discrete, Payoff, World
from workers.environments.base import AgentTimeStep, Player, WorldSettings, parse_settings, refuse_sequential
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode

_SHARED = {
    # Claus & Boutilier 1998, "The dynamics of reinforcement learning in cooperative multiagent systems".
    "climbing": [[11, -30, 0], [-30, 7, 6], [0, 0, 5]],
}
_OWN = {
    "prisoners_dilemma": [[(3, 3), (0, 5)], [(5, 0), (1, 1)]],
    "chicken": [[(0, 0), (-1, 1)], [(1, -1), (-10, -10)]],
    "stag_hunt": [[(4, 4), (1, 3)], [(3, 1), (2, 2)]],
}
_MOST = 100_000
"""Numbers in a table of payoffs, at most."""


class MatrixGameSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    game: Literal["penalty", "climbing", "prisoners_dilemma", "chicken", "stag_hunt", "own"] = "climbing"
    k: float = Field(default=0.0, le=0, allow_inf_nan=False)
    """Payoff of the penalty game where the players miss each other's 10."""
    payoffs: list[Any] | None = None
    """The table of the game `own`: nested lists [actions of player 0][of player 1]...[payoff of each player]."""
    turns: int = Field(default=25, ge=1)
    """Turns of an episode, which then ends as truncated."""
    observe: Literal["nothing", "last"] = "nothing"
    """`nothing`: always the number 1. `last`: the last joint action, one-hot for each player; zeros at first."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""

    @model_validator(mode="after")
    def _table(self) -> Self:
        if (self.payoffs is not None) != (self.game == "own"):
            raise ConfigurationError("payoffs_without_own_game", field="payoffs")
        if self.payoffs is not None:
            try:
                table = np.array(self.payoffs, np.float64)
            except (TypeError, ValueError):
                raise ConfigurationError("payoffs_not_nested_lists", field="payoffs") from None
            if table.ndim < 2 or table.shape[-1] != table.ndim - 1 or not 0 < table.size <= _MOST:
                raise ConfigurationError("payoffs_shape_invalid", value=list(table.shape), limit=_MOST, field="payoffs")
            if not np.isfinite(table.astype(np.float32)).all():
                raise ConfigurationError("payoffs_not_finite", field="payoffs")
        return self


def payoffs(settings: MatrixGameSettings) -> NDArray[np.float32]:
    """[actions of player 0, ..., actions of player P-1, P]: what each joint action brings each player."""
    if settings.payoffs is not None:
        return np.array(settings.payoffs, np.float32)
    if settings.game in _OWN:
        return np.array(_OWN[settings.game], np.float32)
    k = settings.k
    shared = [[10, 0, k], [0, 2, 0], [k, 0, 10]] if settings.game == "penalty" else _SHARED[settings.game]
    return np.repeat(np.array(shared, np.float32)[..., None], 2, axis=-1)


class MatrixGame(FixedLengthWorld):
    """`copies` tables; ConfigurationError for settings that cannot work, or if players are to act one after another."""

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("matrix_game", MatrixGameSettings, settings)
        refuse_sequential("matrix_game", turn_mode)
        self.payoffs = payoffs(s)
        counts = self.payoffs.shape[:-1]
        size = sum(counts) if s.observe == "last" else 1
        box = Box(shape=(size,), dtype="float32", low=int(s.observe == "nothing"), high=1)
        agents = tuple(Agent(name=f"player_{i}", observation=box, action=Discrete(n=n)) for i, n in enumerate(counts))
        payoff: Payoff = "cooperative" if (self.payoffs == self.payoffs[..., :1]).all() else "general"
        population = DictPopulation(agents=agents, payoff=payoff)
        world = World(id="matrix_game", population=population, episode_steps=s.turns)
        super().__init__(world, copies, "simultaneous", s.turns, desynchronize=s.desynchronize)
        self._every = np.arange(copies)
        self._played: NDArray[np.int64] = np.zeros((len(counts), copies), np.int64)
        self._starts = np.cumsum((0, *counts[:-1]))
        self._last = np.zeros((copies, size), np.float32)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        self._last[copies] = 0 if self.settings.observe == "last" else 1

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        self._played[agent] = action

    def _rewards(self) -> None:
        """Pays the joint action."""
        self._earned += self.payoffs[tuple(self._played)].T
        if self.settings.observe == "last":
            self._last.fill(0)
            self._last[self._every, self._played + self._starts[:, None]] = 1

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        seen = self._last if copies is None else self._last[copies]
        out[: len(seen)] = seen

    def scripted(self) -> Player:
        """Plays its part of the joint action whose payoffs add up to most (the first of them)."""
        best = np.unravel_index(self.payoffs.sum(axis=-1).argmax(), self.payoffs.shape[:-1])

        def choose(present: AgentTimeStep) -> NDArray[np.int64]:
            return np.full(len(present.observation), best[present.agent], np.int64)

        return choose

    def render(self, copy: int = 0) -> str:
        """The last joint action of one copy and what it brought, as text."""
        played = self._played[:, copy]
        return f"{self.settings.game}: {tuple(played.tolist())} -> {tuple(self._reward[:, copy].tolist())}"
