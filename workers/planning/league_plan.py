"""What follows from a run's configuration and its world for a league: who sits where, in which copies. Without torch.

In flows: the configuration, the world. Out flow: a `LeaguePlan`, or a ConfigurationError in one sentence.

In each copy of the world one player learns, in one seat, its *home*; a member of the library sits in all other seats.
Homes are contiguous ranges of copies, equally many for each (player, seat); the copies behind them are the *arena*, in
which members play members. Names: a member is POLICY/NUMBER, a player as it learns is POLICY.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocol.config.league import LeagueConfig, Matchmaking
from protocol.config.run import Run
from protocol.errors import ConfigurationError
from protocol.experience.layout import common_of
from protocol.spaces import World
from workers.environments.simulators import EXTERNAL

ADDED = 64
"""The number of the first member of a player that people add: no snapshot has it, however long the run goes on."""


@dataclass(frozen=True, slots=True)
class PlayerPlan:
    """One policy that learns. `agents`: where it sits; `opponents`: names of players whose members it meets; `most`:
    members that it contributes at most; `room`: those that people may add."""

    name: str
    agents: tuple[int, ...]
    opponents: tuple[str, ...]
    matchmaking: Matchmaking
    latest: float
    fresh: bool
    most: int
    room: int = 0

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all that there will be of it."""
        numbers = (*range(self.most), *range(ADDED, ADDED + self.room))
        return tuple(f"{self.name}/{number}" for number in numbers)


@dataclass(frozen=True, slots=True)
class TrainingSlot:
    """The copies of a group, `first` to before `last`, in which `player` learns as `agent`."""

    player: str
    agent: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LeaguePlan:
    """`seats`: agents that are played by players and members; others have fixed strategies. `copies` of a group."""

    config: LeagueConfig
    players: dict[str, PlayerPlan]
    seats: tuple[int, ...]
    copies: int
    copies_per_slot: int
    """Copies of a group in which one player learns in one seat."""

    @property
    def homes(self) -> tuple[TrainingSlot, ...]:
        """Player after player, seat after seat."""
        pairs = [(player.name, agent) for player in self.players.values() for agent in player.agents]
        return tuple(
            TrainingSlot(*pair, i * self.copies_per_slot, (i + 1) * self.copies_per_slot)
            for i, pair in enumerate(pairs)
        )

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all members that there will be."""
        return tuple(name for player in self.players.values() for name in player.members)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Whose games are counted: a player as it learns with each member that it may meet, and members that can sit
        opposite to each other."""
        with_members = [
            (player.name, member)
            for player in self.players.values()
            for opponent in player.opponents
            for member in self.players[opponent].members
        ]
        members = [(member, player) for player in self.players.values() for member in player.members]
        among = [
            (one, other)
            for i, (one, left) in enumerate(members)
            for other, right in members[i + 1 :]
            if self.can_meet(left, right)
        ]
        return (*with_members, *among)

    def can_meet(self, one: PlayerPlan, other: PlayerPlan) -> bool:
        """Whether there is a seat for `one` with all others for `other`."""
        return any(set(self.seats) - {seat} <= set(other.agents) for seat in one.agents)

    def seats_for(self, one: str, other: str) -> tuple[int, ...]:
        """Where `one` may sit with `other` in all other seats; both are names of players."""
        theirs = set(self.players[other].agents)
        return tuple(seat for seat in self.players[one].agents if set(self.seats) - {seat} <= theirs)

    def counters(self) -> tuple[list[str], list[str]]:
        """Names of an actor's counters: whole ones, and sums of margins."""
        names = [f"{one}:{other}" for one, other in self.pairs]
        whole = [f"league.{kind}.{name}" for kind in ("games", "points") for name in names]
        return [*whole, "league_loads", "league_redrawn", "league_fetched"], [f"league.margin.{name}" for name in names]


def plan_league(run: Run, world: World) -> LeaguePlan | None:
    """The league of `run`, if it is one; ConfigurationError where it cannot be played in `world`."""
    league = run.league
    if league is None:
        return None
    _check_world(run, world)
    numbers = {agent.name: number for number, agent in enumerate(world.agents)}
    mapping = run.policy_of(world)
    where: dict[str, tuple[int, ...]] = {}
    for name in dict.fromkeys((*mapping.values(), *league.players)):
        own = league.players[name].agents if name in league.players else None
        if run.fixed(name) is not None:
            if name in league.players:
                raise ConfigurationError("league_player_does_not_learn", policy=name, key="league.players")
            continue
        for agent in own or ():
            if agent not in numbers:
                raise ConfigurationError(
                    "league_player_of_unknown_agent",
                    policy=name,
                    agent=agent,
                    environment=world.id,
                    choices=list(numbers),
                    key=f"league.players.{name}.agents",
                )
        where[name] = tuple(numbers[a] for a in (own or [a for a, policy in mapping.items() if policy == name]))
        if not where[name]:
            raise ConfigurationError("league_player_without_seat", policy=name, key=f"league.players.{name}.agents")
    seats = tuple(sorted({agent for agents in where.values() for agent in agents}))
    homes = sum(map(len, where.values()))
    copies = run.environment.copies // run.groups
    share = int(copies * (1 - league.arena)) // homes
    if not share:
        raise ConfigurationError(
            "league_copies_too_few", expected=homes, count=int(copies * (1 - league.arena)), key="environment.copies"
        )
    rows = run.steps * share / (copies * len(world.agents))
    if rows < league.snapshot_every:
        raise ConfigurationError(
            "league_snapshots_never_due", value=league.snapshot_every, rows=int(rows), key="league.snapshot_every"
        )
    players = {name: _player(run, league, name, agents, where, seats, rows) for name, agents in where.items()}
    return LeaguePlan(league, _with_room(players, league.size), seats, copies, share)


def _player(
    run: Run,
    league: LeagueConfig,
    name: str,
    agents: tuple[int, ...],
    where: dict[str, tuple[int, ...]],
    seats: tuple[int, ...],
    rows: float,
) -> PlayerPlan:
    own = league.players.get(name)
    able = {other for other, theirs in where.items() if all(set(seats) - {agent} <= set(theirs) for agent in agents)}
    opponents = own.opponents if own is not None else None
    for other in opponents or ():
        if other not in where:
            raise ConfigurationError(
                "league_opponent_unknown",
                policy=name,
                opponent=other,
                choices=list(where),
                key=f"league.players.{name}.opponents",
            )
        if other not in able:
            raise ConfigurationError(
                "league_opponent_not_opposite", policy=name, opponent=other, key=f"league.players.{name}.opponents"
            )
    if not able:
        raise ConfigurationError("league_player_without_opponents", policy=name, key="league.players")
    told = {key: getattr(own, key, None) for key in ("matchmaking", "latest", "fresh")}
    chosen = {key: getattr(league, key) if value is None else value for key, value in told.items()}
    if chosen["matchmaking"] == "nash" and not league.arena:
        raise ConfigurationError("league_nash_without_arena", key="league.arena")
    most = 1 + int(rows * len(agents) / league.snapshot_every)
    return PlayerPlan(name, agents, tuple(opponents or [o for o in where if o in able]), most=most, **chosen)


def _with_room(players: dict[str, PlayerPlan], size: int) -> dict[str, PlayerPlan]:
    """What their snapshots leave of the library's `size`, equally much for each."""
    most = sum(player.most for player in players.values())
    if most > size:
        raise ConfigurationError("league_library_too_small", count=most, limit=size, key="league.size")
    return {name: replace(player, room=(size - most) // len(players)) for name, player in players.items()}


def _check_world(run: Run, world: World) -> None:
    mapping = run.policy_of(world)
    learning = [agent for agent, policy in mapping.items() if run.fixed(policy) is None]
    if run.environment.id == EXTERNAL:
        raise ConfigurationError("league_with_simulators", key="league")
    if len(learning) < 2:
        raise ConfigurationError("league_needs_two_learners", environment=world.id, count=len(learning), key="league")
    if any(place.many > 1 for place in world.places):
        raise ConfigurationError("league_with_varying_agents", environment=world.id, key="league")
    if common_of(world) is not None:
        raise ConfigurationError("league_with_common_observations", environment=world.id, key="league")
