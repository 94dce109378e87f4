"""Who an actor has at hand to play against those that learn: members of the library, and players as they are now.

In flows: files of the library, each read when it is first met; the newest weights of every player, which its performer
adopts. Out flow: a player for each agent. At most so many members are in memory; who was not met for longest makes
room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from protocol.memory.shared_file import Counters
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.players.frozen_player import FrozenPlayer, InferencePolicy


@dataclass(slots=True)
class _Opponent:
    name: str
    decider: InferencePolicy
    uses: int = 0
    """Seats that it plays in now."""
    used_at: int = 0
    players: dict[tuple[int, int], FrozenPlayer] = field(default_factory=dict)


class OpponentCache:
    """`newest`: players as they learn, by name, always there; `most` members beside them. `find` gives the file of a
    member, or None while it is on its way; `forget` hears who has left memory; `make` makes a player of a decider for
    (agent, group). `code`: of the user's, what a file may name."""

    def __init__(
        self,
        newest: Mapping[str, InferencePolicy],
        most: int,
        find: Callable[[str], Path | None],
        forget: Callable[[str], None],
        make: Callable[[InferencePolicy, int, int], FrozenPlayer],
        counters: Counters,
        code: Set[str] = frozenset(),
    ) -> None:
        self._most, self._find, self._forget, self._make, self._counters = most, find, forget, make, counters
        self._code = code
        self._roles: dict[int, _Opponent] = {number: _Opponent(*pair) for number, pair in enumerate(newest.items())}
        self._numbers = {name: number for number, name in enumerate(newest)}
        self._always = len(newest)
        self._next = self._always
        self._clock = 0

    @property
    def loaded(self) -> int:
        """Members in memory."""
        return len(self._roles) - self._always

    def acquire(self, name: str) -> int | None:
        """The number of `name`, who plays in one more seat; None where all that are in memory are playing, or its file
        is on its way."""
        number = self._numbers.get(name)
        if number is None and self._room and (path := self._find(name)) is not None:
            self._make_room()
            number = self._load(name, path)
        if number is not None:
            self.use(number)
        return number

    def use(self, number: int) -> None:
        """One more seat that it plays in."""
        role = self._roles[number]
        self._clock += 1
        role.uses, role.used_at = role.uses + 1, self._clock

    def release(self, number: int) -> None:
        """One seat less."""
        self._roles[number].uses -= 1

    def player(self, number: int, agent: int, group: int) -> FrozenPlayer:
        """Who plays `agent` for it; it remembers its streams."""
        role = self._roles[number]
        player = role.players.get((agent, group))
        if player is None:
            player = role.players[agent, group] = self._make(role.decider, agent, group)
        return player

    @property
    def _room(self) -> bool:
        """Whether one more fits in, perhaps in the place of one that does not play."""
        return self.loaded < self._most or any(not self._roles[n].uses for n in self._members)

    @property
    def _members(self) -> list[int]:
        return [number for number in self._roles if number >= self._always]

    def _make_room(self) -> None:
        if self.loaded == self._most:
            oldest = min((n for n in self._members if not self._roles[n].uses), key=lambda n: self._roles[n].used_at)
            name = self._roles.pop(oldest).name
            del self._numbers[name]
            self._forget(name)

    def _load(self, name: str, path: Path) -> int:
        number, self._next = self._next, self._next + 1
        self._roles[number] = _Opponent(name, ExportedPolicy.load(path, self._code))
        self._numbers[name] = number
        self._counters.add("league_loads")
        return number
