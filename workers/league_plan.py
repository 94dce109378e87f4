"""What follows from a run's configuration and its world for a league: who sits where, in which copies. Without torch.

In flows: the configuration, the world. Out flow: a `LeaguePlan`, or a ConfigurationError in one sentence.

In each copy of the world one player learns, in one seat, its *home*; a member of the library sits in all other seats.
Homes are contiguous ranges of copies, equally many for each (player, seat); the copies behind them are the *arena*, in
which members play members. Names: a member is POLICY/NUMBER, a player as it learns is POLICY.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.config import Run
from protocol.errors import ConfigurationError
from protocol.layout import common_of
from protocol.league import LeagueConfig, Matchmaking
from protocol.spaces import World
from workers.environments.simulators.settings import EXTERNAL

__all__ = ["Home", "LeaguePlan", "PlayerPlan", "plan_league"]


@dataclass(frozen=True, slots=True)
class PlayerPlan:
    """One policy that learns. `agents`: where it sits; `opponents`: names of players whose members it meets; `most`:
    members that it contributes at most."""

    name: str
    agents: tuple[int, ...]
    opponents: tuple[str, ...]
    matchmaking: Matchmaking
    latest: float
    fresh: bool
    most: int

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all that it will contribute."""
        return tuple(f"{self.name}/{number}" for number in range(self.most))


@dataclass(frozen=True, slots=True)
class Home:
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
    share: int
    """Copies of a group in which one player learns in one seat."""

    @property
    def homes(self) -> tuple[Home, ...]:
        """Player after player, seat after seat."""
        pairs = [(player.name, agent) for player in self.players.values() for agent in player.agents]
        return tuple(Home(*pair, i * self.share, (i + 1) * self.share) for i, pair in enumerate(pairs))

    @property
    def arena(self) -> range:
        """Copies of a group in which members play members."""
        return range(len(self.homes) * self.share, self.copies)

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
                raise ConfigurationError(f"league.players names {name!r}, which does not learn; remove it there")
            continue
        for agent in own or ():
            if agent not in numbers:
                raise ConfigurationError(
                    f"league.players.{name}.agents names {agent!r}, which is no agent of {world.id}; "
                    f"its agents are {', '.join(numbers)}"
                )
        where[name] = tuple(numbers[a] for a in (own or [a for a, policy in mapping.items() if policy == name]))
        if not where[name]:
            raise ConfigurationError(f"the league's player {name!r} sits nowhere; set league.players.{name}.agents")
    seats = tuple(sorted({agent for agents in where.values() for agent in agents}))
    homes = sum(map(len, where.values()))
    copies = run.environment.copies // run.groups
    share = int(copies * (1 - league.arena)) // homes
    if not share:
        raise ConfigurationError(
            f"a league with {homes} places to learn in needs {homes} copies beside its arena, and there are "
            f"{int(copies * (1 - league.arena))}; raise environment.copies, or lower league.arena"
        )
    rows = run.steps * share / (copies * len(world.agents))
    if rows < league.snapshot_every:
        raise ConfigurationError(
            f"league.snapshot_every is {league.snapshot_every} and a player learns from about {int(rows)} rows in the "
            "whole run for each of its seats, so no member would ever join and the league never begin; lower "
            "snapshot_every, or raise steps"
        )
    players = {name: _player(run, league, name, agents, where, seats, rows) for name, agents in where.items()}
    plan = LeaguePlan(league, players, seats, copies, share)
    _check_size(plan)
    return plan


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
                f"league.players.{name}.opponents names {other!r}, which is no player; the players are "
                f"{', '.join(where)}"
            )
        if other not in able:
            raise ConfigurationError(
                f"league.players.{name}.opponents names {other!r}, which does not sit in all seats opposite to {name}; "
                f"name others, or set league.players.{other}.agents"
            )
    if not able:
        raise ConfigurationError(
            f"nobody can sit opposite to the league's player {name!r}, in all other seats at once; let one policy play "
            "them (agents), or set league.players"
        )
    told = {key: getattr(own, key, None) for key in ("matchmaking", "latest", "fresh")}
    chosen = {key: getattr(league, key) if value is None else value for key, value in told.items()}
    if chosen["matchmaking"] == "nash" and not league.arena:
        raise ConfigurationError(
            "league.matchmaking is nash and league.arena is 0, so the members' game would never be measured; raise "
            "league.arena"
        )
    most = 1 + int(rows * len(agents) / league.snapshot_every)
    return PlayerPlan(name, agents, tuple(opponents or [o for o in where if o in able]), most=most, **chosen)


def _check_size(plan: LeaguePlan) -> None:
    most, size = len(plan.members), plan.config.size
    if most > size:
        raise ConfigurationError(
            f"the league would grow to {most} members and its library holds {size}; raise league.size or "
            "league.snapshot_every, or lower steps"
        )


def _check_world(run: Run, world: World) -> None:
    mapping = run.policy_of(world)
    learning = [agent for agent, policy in mapping.items() if run.fixed(policy) is None]
    if run.environment.id == EXTERNAL:
        raise ConfigurationError("simulators play with whom they want, which is no league; remove league")
    if len(learning) < 2:
        raise ConfigurationError(
            f"a league needs two agents or more whose policies learn, and {world.id} has {len(learning)} here; remove "
            "league, or the fixed strategies"
        )
    if any(place.many > 1 for place in world.places):
        raise ConfigurationError(
            f"{world.id} has an agent that stands for many, who cannot be told apart; remove league"
        )
    if common_of(world) is not None:
        raise ConfigurationError(
            f"{world.id} has observations that are common to all agents, which a league cannot record by copy; choose "
            "a world without, or remove league"
        )
