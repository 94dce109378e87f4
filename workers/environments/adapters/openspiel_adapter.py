"""Games of OpenSpiel (https://github.com/google-deepmind/open_spiel) in which players move one after another.

In flow: in each copy the move of the player whose turn it is. Out flow: a turn that gathers, for each player, the
copies in which it is to move. A player sees its information state (all that it knows since the game began) or, where a
game has none, its observation, and which moves are legal; what it earned is told when the game is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.errors.packages import not_installed
from workers.environments.adapters.space_conversion import MASK, translate
from workers.environments.adapters.turn_builder import TurnBuilder
from workers.environments.base import Environment, Turn
from workers.environments.known_ids import is_meant, nearest


def from_id(id: str, copies: int, settings: Mapping[str, Any]) -> OpenSpielTurns:
    """`openspiel:GAME`, with the game's parameters as settings."""
    return OpenSpielTurns(id, load_game(id, settings), copies)


def load_game(id: str, settings: Mapping[str, Any]) -> Any:
    """The game of OpenSpiel; ConfigurationError where there is none that can be played here."""
    try:
        import pyspiel
    except ImportError:
        raise not_installed(id, "pyspiel") from None
    name = id.partition(":")[2]
    if name not in pyspiel.registered_names():
        near = nearest(name, {game: game for game in pyspiel.registered_names()})
        hint = is_meant([f"openspiel:{one}" for one in near])
        raise ConfigurationError("openspiel_game_unknown", value=name, hint=hint, key="environment.id")
    try:
        game = pyspiel.load_game(name, dict(settings))
    except (pyspiel.SpielError, TypeError) as fault:
        raise ConfigurationError(
            "openspiel_settings_refused",
            environment=id,
            reason=" ".join(str(fault).split()),
            key="environment.settings",
        ) from None
    return check_game(id, game)


def is_game(made: Any) -> bool:
    """Whether it is a game of OpenSpiel."""
    return hasattr(made, "new_initial_state") and hasattr(made, "get_type")


def check_game(id: str, game: Any) -> Any:
    """The same game; ConfigurationError where it cannot be played here."""
    import pyspiel

    kind = game.get_type()
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL or game.num_players() < 2:
        raise ConfigurationError("openspiel_game_not_sequential", environment=id, key="environment.id")
    if kind.reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        raise ConfigurationError("openspiel_rewards_before_end", environment=id, key="environment.id")
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        raise ConfigurationError("openspiel_observation_missing", environment=id, key="environment.id")
    return game


class OpenSpielTurns(Environment):
    """`copies` states of `game`. An environment step is complete when a player moves again, or the game is over."""

    def __init__(self, id: str, game: Any, copies: int) -> None:
        from gymnasium import spaces

        self.copies, self._game = copies, game
        kind = game.get_type()
        self._full = kind.provides_information_state_tensor
        shape = game.information_state_tensor_shape() if self._full else game.observation_tensor_shape()
        size, moves = int(np.prod(shape)), game.num_distinct_actions()
        names = [f"player_{number}" for number in range(game.num_players())]
        self.world, agents = translate(
            id,
            {name: spaces.Box(-np.inf, np.inf, (size,), np.float32) for name in names},
            {name: spaces.Discrete(moves) for name in names},
            {name: {MASK: np.ones(moves, np.int8)} for name in names},
            game.max_game_length(),
        )
        self._board = TurnBuilder(id, agents, copies)
        self._states: list[Any] = [None] * copies
        self._acted: list[set[int]] = [set() for _ in range(copies)]
        self._generator = np.random.Generator(np.random.PCG64(0))

    def reset(self, seed: int) -> Turn:
        """New games in all copies; chance draws from `seed`."""
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._board.clear()
        for copy in range(self.copies):
            self._begin(copy)
            self._show(copy)
        return self._board.turn()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Makes the move of whose turn it is in each copy."""
        steps, chosen = 0, list(self._board.each(actions))
        self._board.begin()
        for agent, copy, action in chosen:
            state = self._states[copy]
            state.apply_action(action)
            self._acted[copy].add(agent)
            self._chance(state)
            if state.is_terminal():
                self._end(copy, state.returns())
                self._begin(copy)
                steps += 1
            elif self._states[copy].current_player() in self._acted[copy]:
                self._acted[copy].clear()
                steps += 1
            self._show(copy)
        return self._board.turn(env_steps=steps)

    def _begin(self, copy: int) -> None:
        self._states[copy] = self._game.new_initial_state()
        self._acted[copy].clear()
        self._chance(self._states[copy])

    def _chance(self, state: Any) -> None:
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            at = int(np.searchsorted(np.cumsum(chances), self._generator.random(), side="right"))
            state.apply_action(outcomes[min(at, len(outcomes) - 1)])

    def _end(self, copy: int, returns: Sequence[float]) -> None:
        for agent, earned in enumerate(returns):
            self._board.add_reward(agent, copy, earned)
            self._board.end(agent, copy, True, False, None)

    def _show(self, copy: int) -> None:
        state, board = self._states[copy], self._board
        agent = state.current_player()
        tensor = state.information_state_tensor(agent) if self._full else state.observation_tensor(agent)
        masks = board.masks[agent]
        assert masks is not None
        board.observation[agent][copy] = tensor
        masks[copy] = state.legal_actions_mask(agent)
        board.present[agent, copy] = True

    def render(self, copy: int = 0) -> str:
        """The state as OpenSpiel writes it."""
        return str(self._states[copy])
