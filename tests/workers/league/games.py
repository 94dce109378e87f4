"""Games of OpenSpiel as trees, and strategies for them from policies in files."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.workers.league.exploitability import ChanceNode, DecisionNode, Node, TerminalNode
from workers.policies.export.module import ExportedModule
from workers.policies.export.safetensors import load_policy

Seen = dict[Hashable, tuple[NDArray[np.float32], list[int]]]
"""Information set -> observation, and which moves are legal."""


def tree_of(game: Any) -> tuple[Node, Seen]:
    """The game from its beginning, and what is seen at each information set."""
    seen: Seen = {}

    def descend(state: Any) -> Node:
        if state.is_terminal():
            return TerminalNode(state.returns()[0])
        if state.is_chance_node():
            return ChanceNode(tuple((chance, descend(state.child(move))) for move, chance in state.chance_outcomes()))
        player = state.current_player()
        information = f"{player}{state.information_state_string(player)}"
        legal = state.legal_actions()
        seen[information] = np.array(state.information_state_tensor(player), np.float32), legal
        return DecisionNode(player, information, tuple(descend(state.child(move)) for move in legal))

    return descend(game.new_initial_state()), seen


def strategy_of(seen: Seen, chances: Callable[[NDArray[np.float32]], NDArray]) -> dict[Hashable, NDArray]:
    """What `chances` says of each observation, of the legal moves alone."""
    found = {information: chances(observation)[legal] for information, (observation, legal) in seen.items()}
    return {information: told / told.sum() for information, told in found.items()}


def member(path: Path) -> Callable[[NDArray[np.float32]], NDArray]:
    """The chances of each move by the policy in a file, were all moves legal."""
    import torch

    manifest, policy = load_policy(path)
    deployed = ExportedModule(manifest.interface, policy)
    names = [port.name for port in manifest.outputs]

    def chances(observation: NDArray[np.float32]) -> NDArray:
        columns = list(deployed.example(1))
        columns[0] = torch.from_numpy(observation[None])
        with torch.no_grad():
            told = dict(zip(names, deployed(*columns), strict=True))
        return np.exp(told["log_probabilities"].numpy()[0].astype(np.float64))

    return chances


def kuhn_equilibrium(alpha: float) -> dict[Hashable, NDArray]:
    """Cards 0, 1, 2; moves pass and bet."""
    bets = {
        "00": alpha,
        "01": 0.0,
        "02": 3 * alpha,
        "00pb": 0.0,
        "01pb": alpha + 1 / 3,
        "02pb": 1.0,
        "10p": 1 / 3,
        "11p": 0.0,
        "12p": 1.0,
        "10b": 0.0,
        "11b": 1 / 3,
        "12b": 1.0,
    }
    return {information: np.array([1 - bet, bet]) for information, bet in bets.items()}
