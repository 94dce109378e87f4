"""The one interface of every environment: many copies at once, agents in turns. What its settings are read into, and
what a player is that chooses by chance.

In flows: actions of the agents that were present. Out flow: the next `Turn`, which says which agents are present
in which copies, what they see, and what their previous action brought.

Observations, actions and masks are rows of the agent's place in the tree (`Place.observed`, `.acted`, `.masked`):
plain arrays [n, *shape], structured ones [n] where a space is nested.

Legend: `E` copies, `n` copies in which an agent is present in this turn, `m` of those whose episode was truncated. Of
an agent that stands for many, C = `Place.many` to a copy, every row `copy * C + place` counts as a copy.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.errors import ConfigurationError
from protocol.spaces import Place, World
from protocol.spaces.drawing import random_rows
from workers.runtime.state_capture import State, capture, restore, strip_prefix

Episodes = dict[tuple[str, int], tuple[int, float]]
"""(member of a collection, agent) -> (episodes of the agent that ended in it, sum of their returns); (`info/NAME`,
agent) -> (those of which the world told a number NAME, sum of what it told), without NAME those of which it told one
that is not finite or beyond 1e12, which is left out."""
INFO = "info/"
_LARGEST = 1e12
_NAMES = 100
"""The most that an agent's episodes are told of by between two calls of `take_episodes`."""
_OURS = ("r", "l", "t")
"""What Gymnasium's `RecordEpisodeStatistics` tells in `episode`, and is measured here for all worlds."""


@dataclass(slots=True)
class AgentTimeStep:
    """One agent that must act now, in all copies where it is present.

    `reward`, `terminated` and `truncated` belong to the agent's *previous* action in that copy (rewards that arrived
    between its turns added); they are zero and False before its first action. Where an episode ended, `observation`
    already shows the new episode; the true last observation of a truncated one is in `final_observation`.
    Arrays may be reused by the environment: they are valid until the next `step`.
    """

    agent: int
    """Index into `world.agents`."""
    observation: NDArray
    """[n, *shape]: rows of `Place.observed`."""
    reward: NDArray[np.float32]
    """[n]"""
    terminated: NDArray[np.bool_]
    """[n]: the previous action ended the episode; its value beyond is 0."""
    truncated: NDArray[np.bool_]
    """[n]: the episode was cut (time limit) after the previous action, and not terminated by it; its value beyond is
    that of the final observation."""
    copies: NDArray[np.int64] | None = None
    """[n], increasing: where the agent is present (a copy, or `copy * C + place`); None when that is everywhere (then
    n = E * C)."""
    final_index: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[m]: positions in 0..n-1 that were truncated, increasing."""
    final_observation: NDArray | None = None
    """[m, *shape]; None when m = 0."""
    final_common: NDArray | None = None
    """[m, *shape]: what all agents saw with it, where the world has a common observation."""
    action_mask: NDArray | None = None
    """[n, *shape]: rows of `Place.masked`, True for the actions that are legal now; None where the agent has none."""
    clock: NDArray[np.float64] | None = None
    """[n]: when each observation was made, in seconds of whatever clock its copy has; None where copies have none."""


@dataclass(slots=True)
class AgentOutcome:
    """What the last actions of an agent brought in copies where it does not act now: rewards between its turns, or the
    end, after which it may come back in a new episode or never. The fields mean what they mean in `AgentTimeStep`."""

    agent: int
    copies: NDArray[np.int64]
    """[n], increasing."""
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_index: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    final_observation: NDArray | None = None
    final_common: NDArray | None = None


@dataclass(slots=True)
class Turn:
    """What `reset` and `step` return: who acts now. `env_steps` counts the copies' full turns that this step completed
    (one full turn of one copy, all its agents, is one environment step; E per step in a parallel world). `outcomes` are
    told before anybody acts; an agent's reward is told once, here or with its next presence."""

    present: tuple[AgentTimeStep, ...]
    env_steps: int = 0
    outcomes: tuple[AgentOutcome, ...] = ()
    group: int = 0
    """Which group of copies this turn is of; arrays and copies are numbered within it."""
    common: NDArray | None = None
    """[E, *shape]: what all agents see beside their own observations, in a world that has something like that (the
    `common` of its outermost population), told with every turn and valid until the next `step`."""


Rows = slice | NDArray[np.int64]
Told = TypeVar("Told", AgentTimeStep, AgentOutcome)


def select_rows(told: Told, rows: NDArray[np.int64]) -> Told:
    """`rows` of what was told, whose copies keep their numbers."""
    copies = rows if told.copies is None else told.copies[rows]
    finals = np.flatnonzero(np.isin(told.final_index, rows))
    return with_rows(told, rows, copies, np.searchsorted(rows, told.final_index[finals]), finals)


def with_rows(
    told: Told, rows: Rows, copies: NDArray[np.int64] | None, final_index: NDArray[np.int64], finals: Rows
) -> Told:
    """`rows` of what was told, which are of `copies`; `finals` of its final observations, those of `final_index`."""
    final, seen = (told.final_observation, told.final_common) if len(final_index) else (None, None)
    changed: dict[str, Any] = {
        "copies": copies,
        "reward": told.reward[rows],
        "terminated": told.terminated[rows],
        "truncated": told.truncated[rows],
        "final_index": final_index,
        "final_observation": None if final is None else final[finals],
        "final_common": None if seen is None else seen[finals],
    }
    if isinstance(told, AgentTimeStep):
        changed["observation"] = told.observation[rows]
        changed["action_mask"] = None if told.action_mask is None else told.action_mask[rows]
        changed["clock"] = None if told.clock is None else told.clock[rows]
    return replace(told, **changed)


def add_episodes(to: Episodes, more: Episodes) -> None:
    """Enters what else ended."""
    for place, (count, total) in more.items():
        before = to.get(place, (0, 0.0))
        to[place] = before[0] + count, before[1] + total


def _numbers_of(info: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[Any, Any] = {}
    for whole in (info, _part(info, "final_info")):
        episode = _part(whole, "episode")
        found |= {**whole, **{name: told for name, told in episode.items() if name not in _OURS}}
    scalars = ((name, _scalar(told)) for name, told in found.items() if name and type(name) is str)
    return {name: told for name, told in scalars if isinstance(told, bool | int | float)}


def _scalar(told: Any) -> Any:
    """As Python has it, where it is a scalar of an array library."""
    if isinstance(told, np.timedelta64) or getattr(told, "shape", None) != ():
        return told
    return told.item() if callable(getattr(told, "item", None)) else told


def _part(info: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
    part = info.get(name)
    return part if isinstance(part, Mapping) else {}


Player = Callable[[AgentTimeStep], NDArray]
"""Chooses actions, n rows of `Place.acted`, for one agent that is present."""


class Environment(ABC):
    """`copies` independent copies of one world, stepped together; episodes restart by themselves."""

    world: World
    copies: int
    groups: int = 1
    """Contiguous groups of E / groups copies each, whose turns alternate: `step` takes the actions of the group that
    was returned last and returns the next group's turn."""
    restarts: int = 0
    """Times so far that a process which stepped copies was started again."""
    counters: tuple[str, ...] = ()
    """Names of totals that `metrics` tells."""
    wants_preview: bool = False
    """Whether somebody outside waits for actions, so that `preview_actions` is worth a call."""
    has_state: bool = False
    """Whether `get_state` and `set_state` tell all, which a lock-step checkpoint needs. As they are here they do for a
    world whose memory is arrays, numbers and generators of random numbers, its own or that of its parts."""
    _endings: dict[int, dict[str, tuple[int, float]]] | None = None

    @abstractmethod
    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all copies, reproducibly from `seed`, and says who acts first."""

    @abstractmethod
    def step(self, actions: Sequence[NDArray]) -> Turn:
        """Applies actions for each entry of the last turn's `present`, in that order: n rows of `Place.acted` each.
        Choices count from the `start` of their space."""

    def preview_actions(self, actions: Sequence[NDArray]) -> None:
        """The actions that `step` is given next, as soon as they are known: for a world that `wants_preview`."""

    def flush_ends(self) -> tuple[AgentOutcome, ...]:
        """After `reset` or `step`: tells at once of all ends that agents would be told of with their next presence, and
        not again then. Nothing where ends are always told in the turn in which they come, which is best."""
        return ()

    def get_state(self) -> State:
        """All that the world remembers between two turns, as plain arrays that are its caller's. What it has told of
        episodes is not in it: that was counted when it was taken."""
        return capture(self, ("_endings",))

    def set_state(self, state: State) -> None:
        """After `reset` with any seed: goes on as the world did of which `get_state` gave `state`. The turn that was
        told last there is its caller's to keep."""
        restore(self, state)

    def tell(self, agent: SupportsIndex, info: Any) -> None:
        """An episode of `agent` has ended, and `info` tells of it, in the manner of Gymnasium: each number and truth by
        name, there and in its parts `episode` and `final_info`, becomes a curve `info/NAME` of the agent's policy.
        What else it holds is passed over."""
        agent, agents = operator.index(agent), len(self.world.agents)
        if not 0 <= agent < agents:
            raise IndexError(f"tell: agent {agent} is none of {agents}, which count from 0")
        if not isinstance(info, Mapping) or not info:
            return
        self._endings = {} if self._endings is None else self._endings
        told = self._endings.setdefault(agent, {})
        for name, value in _numbers_of(info).items():
            sound = -_LARGEST <= value <= _LARGEST
            place = f"{INFO}{name if sound else ''}"
            count, total = told.get(place, (0, 0.0))
            if count or len(told) < _NAMES:
                told[place] = count + 1, total + (value if sound else 0.0)

    def take_episodes(self) -> Episodes:
        """What ended since the last call, in members of a collection and as far as the world tells of its episodes."""
        endings, self._endings = self._endings or {}, None
        return {(name, agent): told for agent, names in endings.items() for name, told in names.items()}

    def set_curriculum(self, curriculum: Mapping[str, Any]) -> None:
        """What whoever decides for all actors of a run says of the members of a collection; nothing to others."""

    def poll(self) -> None:
        """While the actor waits for credit, at least twenty times a second: for what must not wait as long."""

    def metrics(self) -> dict[str, float]:
        """What is to be known of an environment that reaches beyond its process: totals and measurements by name."""
        return {}

    def scripted(self) -> Player | None:
        """A hand-written player to compare with, where the world has one."""
        return None

    def render(self, copy: int = 0) -> str:
        """One copy as text; empty where the world has none."""
        return ""

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """One copy as a picture [height, width, 3], a cell of a grid being `scale` points; None where there is none."""
        return None

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_] | None:
        """[height, width]: the cells of one copy of a grid world in which agents are; None where it is no grid."""
        return None

    def close(self) -> None:
        """Frees what the environment holds."""


class WrappedEnvironment(Environment):
    """An environment around `inner`: all that subclasses do not change is as `inner` has it."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.world = inner.world
        self.copies, self.groups, self.counters = inner.copies, inner.groups, inner.counters
        self.has_state = inner.has_state

    def _run(self, verb: str, *arguments: Any) -> Any:
        """What method `verb` of the environment returns."""
        return getattr(self._inner, verb)(*arguments)

    def get_state(self) -> State:
        """The environment's, and what is remembered here."""
        state = {f"own.{name}": array for name, array in capture(self, ("_endings", "_inner")).items()}
        return state | {f"inner.{name}": array for name, array in self._run("get_state").items()}

    def set_state(self, state: State) -> None:
        """The inverse."""
        self._run("set_state", strip_prefix("inner.", state))
        restore(self, strip_prefix("own.", state), (Turn, AgentTimeStep, AgentOutcome))

    def take_episodes(self) -> Episodes:
        """As the environment's."""
        return self._run("take_episodes")

    def set_curriculum(self, curriculum: Mapping[str, Any]) -> None:
        """Handed on."""
        self._run("set_curriculum", curriculum)

    def poll(self) -> None:
        """Handed on."""
        self._run("poll")

    def metrics(self) -> dict[str, float]:
        """As the environment's."""
        return self._run("metrics")

    def scripted(self) -> Player | None:
        """As the environment's, which is shown what it knows."""
        player: Player | None = self._run("scripted")
        return None if player is None else self._player(player)

    def _player(self, player: Player) -> Player:
        """What plays here as `player` does in the environment."""
        return player

    def render(self, copy: int = 0) -> str:
        """As the environment's."""
        return self._run("render", copy)

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """As the environment's."""
        return self._run("render_rgb", copy, scale)

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_] | None:
        """As the environment's."""
        return self._run("agent_cells", copy)

    def close(self) -> None:
        """Closes the environment."""
        self._run("close")


class WorldSettings(BaseModel):
    """What may be set under `environment.settings` of a world; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_Model = TypeVar("_Model", bound=WorldSettings)


def parse_settings(id: str, model: type[_Model], settings: Mapping[str, Any]) -> _Model:
    """`settings` of the world `id` as `model`; ConfigurationError for the first fault in one sentence."""
    try:
        return model.model_validate(settings)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        raise ConfigurationError(
            "unknown_environment_setting",
            environment=id,
            field=place,
            choices=known,
            key=f"environment.settings.{place}",
        )
    told = first.get("ctx", {}).get("error")
    if isinstance(told, ConfigurationError):
        key = f"environment.settings.{told.facts.get('field', place)}".rstrip(".")
        raise told.within(f"{id} settings", environment=id, key=key)
    message = first["msg"].removeprefix("Value error, ")
    where = f"setting {place} = {first['input']!r}: " if place else "settings: "
    raise ConfigurationError(
        "environment_setting_invalid",
        environment=id,
        where=where,
        reason=message,
        key=f"environment.settings.{place}".rstrip("."),
    )


def refuse_sequential(id: str, turn_mode: str | None) -> None:
    """ConfigurationError if the agents of the world `id`, which act all at once, are to act one after another."""
    if turn_mode == "sequential":
        raise ConfigurationError(
            "turn_mode_not_supported",
            value=turn_mode,
            environment=id,
            how="all at once",
            expected="simultaneous",
            key="environment.turn_mode",
        )


def random_player(place: Place, generator: np.random.Generator) -> Player:
    """Chooses every legal choice with equal probability; numbers as in `random_rows`."""

    def choose(present: AgentTimeStep) -> NDArray[Any]:
        return random_rows(place.acted, len(present.observation), generator, present.action_mask)

    return choose
