"""An object that speaks ML-Agents' low-level API as its documentation says it (`mlagents_envs.base_env`), with a game
drawn at random that keeps its own books. The package itself refuses this Python, so this stands in for it.

Every first number of an observation is one that no other observation of the game has, nor of games with other seeds
(up to a hundred).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ActionSpec", "Entry", "Unity"]


class ActionTuple:
    """Actions of n agents: [n, continuous] float32 and [n, branches] int32."""

    def __init__(self, continuous: Any, discrete: Any) -> None:
        self.continuous, self.discrete = continuous, discrete

    def add_continuous(self, continuous: Any) -> None:
        self.continuous = continuous

    def add_discrete(self, discrete: Any) -> None:
        self.discrete = discrete


class ActionSpec(NamedTuple):
    continuous_size: int
    discrete_branches: tuple[int, ...]

    def empty_action(self, n: int) -> ActionTuple:
        discrete = np.zeros((n, len(self.discrete_branches)), np.int32)
        return ActionTuple(np.zeros((n, self.continuous_size), np.float32), discrete)


class ObservationSpec(NamedTuple):
    shape: tuple[int, ...]
    name: str = ""


class BehaviorSpec(NamedTuple):
    observation_specs: list[ObservationSpec]
    action_spec: ActionSpec


@dataclass
class DecisionSteps:
    """Who asks for an action."""

    obs: list[Any]
    reward: Any
    agent_id: Any
    action_mask: list[Any] | None
    group_id: Any
    group_reward: Any

    def __len__(self) -> int:
        return len(self.agent_id)


@dataclass
class TerminalSteps:
    """Whose episode ended."""

    obs: list[Any]
    reward: Any
    interrupted: Any
    agent_id: Any
    group_id: Any
    group_reward: Any

    def __len__(self) -> int:
        return len(self.agent_id)


@dataclass
class Entry:
    """What one action of an agent led to, as the game knows it."""

    action: tuple[float, ...]
    reward: float = 0.0
    how: str = ""
    final: float | None = None


@dataclass
class _Walker:
    number: int
    wait: int = 0
    acted: bool = False
    reward: float = 0.0
    row: Entry | None = None
    masks: list[Any] = field(default_factory=list)


class Unity:
    """Behaviours as `specs` says, each with up to `most` agents that ask for actions at their own times."""

    def __init__(self, seed: int, specs: dict[str, ActionSpec], shapes: list[tuple[int, ...]], most: int = 3) -> None:
        self._chance, self._shapes, self._most = np.random.default_rng(seed), shapes, most
        self._specs = {name: BehaviorSpec([ObservationSpec(s) for s in shapes], spec) for name, spec in specs.items()}
        self.most_agents = dict.fromkeys(specs, most)
        self.behavior_specs: dict[str, BehaviorSpec] = {}
        self.books: dict[float, Entry] = {}
        """First number of an observation -> what the action on it led to, once that is known."""
        self._count = 10_000.0 * (seed % 100)
        self._numbers = 0
        self._alive: dict[str, list[_Walker]] = {}
        self._steps: dict[str, tuple[DecisionSteps, TerminalSteps]] = {}
        self._given: set[str] = set()
        self.closed = False

    def reset(self) -> None:
        self.behavior_specs = self._specs  # known once the simulation has told
        self._alive = {name: [self._born() for _ in range(2)] for name in self._specs}
        self._tell({name: [] for name in self._specs})

    def _born(self) -> _Walker:
        self._numbers += 1
        return _Walker(self._numbers, reward=float(self._chance.integers(-1, 2)))

    def get_steps(self, name: str) -> tuple[DecisionSteps, TerminalSteps]:
        return self._steps[name]

    def set_actions(self, name: str, action: ActionTuple) -> None:
        """In the order of the decision steps."""
        decisions, spec = self._steps[name][0], self._specs[name].action_spec
        assert action.continuous.shape == (len(decisions), spec.continuous_size)
        assert action.discrete.shape == (len(decisions), len(spec.discrete_branches))
        assert (action.continuous.dtype, action.discrete.dtype) == (np.float32, np.int32)
        by_number = {walker.number: walker for walker in self._alive[name]}
        for k, number in enumerate(decisions.agent_id.tolist()):
            walker = by_number[number]
            assert not any(mask[choice] for mask, choice in zip(walker.masks, action.discrete[k], strict=True)), (
                "illegal"
            )
            walker.row = Entry((*action.continuous[k].tolist(), *action.discrete[k].tolist()), walker.reward)
            self.books[float(decisions.obs[0][k].flat[0])] = walker.row
            walker.reward, walker.acted = 0.0, True
        self._given.add(name)

    def step(self) -> None:
        over: dict[str, list[tuple[_Walker, bool]]] = {}
        for name, walkers in self._alive.items():
            assert name in self._given or not len(self._steps[name][0]), "all who ask are given an action"
            over[name] = [
                (w, bool(self._chance.random() < 0.5)) for w in walkers if w.acted and self._chance.random() < 0.2
            ]
            gone = [walker for walker, _ in over[name]]
            self._alive[name] = [walker for walker in walkers if walker not in gone]
            while len(self._alive[name]) < self._most and self._chance.random() < 0.4:
                self._alive[name].append(self._born())
            self._chance.shuffle(self._alive[name])
        self._given.clear()
        self._tell(over)

    def _look(self, n: int) -> list[Any]:
        seen = [self._chance.random((n, *shape)).astype(np.float32) for shape in self._shapes]
        for k in range(n):
            self._count += 1
            seen[0][k].flat[0] = self._count
        return seen

    def _tell(self, over: dict[str, list[tuple[_Walker, bool]]]) -> None:
        for name, spec in self._specs.items():
            asks = []
            for walker in self._alive[name]:
                walker.wait -= 1
                if walker.wait < 0:
                    walker.wait = int(self._chance.integers(3))
                    asks.append(walker)
            self._steps[name] = (self._decisions(asks, spec), self._terminals(over[name]))

    def _earned(self, walkers: list[_Walker]) -> tuple[Any, Any]:
        """Own and group rewards; the books have their sum with the action before, or with the first one."""
        own, group = self._chance.integers(-9, 9, (2, len(walkers))).astype(np.float32)
        for walker, reward in zip(walkers, own + group, strict=True):
            if walker.row is None:
                walker.reward = float(reward)
            else:
                walker.row.reward += float(reward)
        return own, group

    def _decisions(self, walkers: list[_Walker], spec: BehaviorSpec) -> DecisionSteps:
        branches, n = spec.action_spec.discrete_branches, len(walkers)
        masks = None
        for walker in walkers:
            walker.masks = [np.zeros(size, np.bool_) for size in branches]
        if branches and self._chance.random() < 0.7:
            masks = [self._chance.random((n, size)) < 0.5 for size in branches]
            for mask in masks:
                mask[np.arange(n), self._chance.integers(mask.shape[1], size=n)] = False
            for k, walker in enumerate(walkers):
                walker.masks = [mask[k] for mask in masks]
        own, group = self._earned(walkers)
        numbers = np.array([walker.number for walker in walkers], np.int32)
        return DecisionSteps(self._look(n), own, numbers, masks, np.zeros(n, np.int32), group)

    def _terminals(self, over: list[tuple[_Walker, bool]]) -> TerminalSteps:
        walkers, n = [walker for walker, _ in over], len(over)
        own, group = self._earned(walkers)
        seen, cut = self._look(n), np.array([interrupted for _, interrupted in over], np.bool_)
        for k, walker in enumerate(walkers):
            assert walker.row is not None
            walker.row.how = "truncated" if cut[k] else "terminated"
            walker.row.final = float(seen[0][k].flat[0]) if cut[k] else None
        numbers = np.array([walker.number for walker in walkers], np.int32)
        return TerminalSteps(seen, own, cut, numbers, np.zeros(n, np.int32), group)

    def close(self) -> None:
        self.closed = True
