"""The messages between a simulator and the actor that serves it, one class each; arrays follow as one raw frame.

A simulator says `hello`, is admitted to a copy of the world, and from then on `observe`s, for which it is given actions
(`act`), and tells how episodes `end`. One that does not drive its own loop is told when to begin (`reset`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import FailFast, Field

from protocol import OLDEST_SCHEMA, SCHEMA
from protocol.messages.core import (
    Count,
    Document,
    Finite,
    Incarnation,
    Label,
    Message,
    MessagePart,
    Name,
    Nonce,
    Ordinal,
    Seconds,
    Text,
)
from protocol.spaces import Action, Place, RowFormat, dtype_of

Fallback = Literal["last", "default", "scripted"]
"""What is done while an action is late: the same as before, what the space has for nothing, or what the simulator's own
rule says."""
Names = Annotated[list[Name], FailFast()]
Rewards = Annotated[list[Finite], FailFast()]
MOST_INFOS, LONGEST_INFO = 30, 48
"""Names of numbers that are told of an episode, and characters of one."""
Info = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=LONGEST_INFO)], bool | Finite], Field(max_length=MOST_INFOS)
]


class Column(MessagePart):
    """One array of what an agent observes, may do or does."""

    name: Name
    dtype: Name
    """As numpy writes it, little-endian: `<f4`, `|u1`, `|b1`, `<i8`."""
    shape: Annotated[list[Count], FailFast()]


class PlaceFacts(MessagePart):
    """An agent, or the template of many, and the arrays that stand for it in frames, in this order."""

    agent: Name
    many: Count
    """0: it is one agent. Otherwise the most of them that there are at once, called `agent.0` and so on."""
    observation: Annotated[list[Column], FailFast()]
    mask: Annotated[list[Column], FailFast()]
    action: Annotated[list[Column], FailFast()]
    atomic: bool
    """Whether the elements of its action are always done together."""


class Hello(Message):
    """simulator -> actor (DEALER to ROUTER): may I take part?"""

    type: ClassVar[str] = "hello"
    stable: ClassVar[bool] = True
    name: Label
    """The identity it claims; with it, it comes back to its copy."""
    token: Name
    """Random for each process: the same identity may come again, another process may not claim it."""
    drives: bool = True
    """Whether its episodes begin by themselves; else when it is told `reset`."""
    world: Nonce = ""
    """Hash of the world that it was written for; empty: any."""
    lease: Seconds = 10.0
    """Seconds that it may be silent."""
    software: Name = "unknown"
    """For people."""
    oldest_schema: Ordinal = OLDEST_SCHEMA
    newest_schema: Ordinal = SCHEMA


class Admit(Message):
    """actor -> simulator: who you are, and what the arrays in frames are."""

    type: ClassVar[str] = "admit"
    run: Name
    name: Label
    incarnation: Incarnation
    copy_number: Count
    """Which copy of the world it is now."""
    hash: Name
    """Of `world`."""
    world: Document
    places: Annotated[list[PlaceFacts], FailFast()]
    lease: Seconds
    largest: Count
    """Bytes of the largest frame that is taken in."""
    rate: Count
    """Messages a second that are taken in."""
    deadline: Finite = 0.0
    """Seconds in which it should have an action, or do what `fallback` says; 0: it may wait as long as it likes."""
    fallback: Fallback = "last"


class Observe(Message):
    """simulator -> actor: what these agents see; an action for each, please. Frame 1: their arrays."""

    type: ClassVar[str] = "observe"
    arrays: ClassVar[bool] = True
    number: Ordinal
    """Counts its `observe`s."""
    episode: Ordinal
    """Counts its episodes."""
    agents: Names
    rewards: Rewards = Field(default_factory=list)
    """Of each, since its last action; empty: 0 for all."""
    elements: Names = Field(default_factory=list)
    """Which elements of actions that are not atomic it is going to do; empty: all."""
    late: Count = 0
    """Actions that came after its deadline, since its last `observe`."""
    clock: Finite = 0.0
    """Seconds on its own clock when this was seen; kept with the step. 0: it has none."""


class Act(Message):
    """actor -> simulator: actions for all agents of an `observe`. Frame 1: their arrays."""

    type: ClassVar[str] = "act"
    arrays: ClassVar[bool] = True
    answers: Ordinal
    """Number of the `observe`."""
    episode: Ordinal
    waited: Finite
    """Seconds from its arrival until it was looked at: more than a few milliseconds say that training is behind."""


class End(Message):
    """simulator -> actor: the last actions of these agents ended their episode. Frame 1, if `truncated`: what they saw
    last."""

    type: ClassVar[str] = "end"
    arrays: ClassVar[bool] = True
    omitted: ClassVar[frozenset[str]] = frozenset({"infos"})
    episode: Ordinal
    agents: Names = Field(default_factory=list)
    rewards: Rewards = Field(default_factory=list)
    truncated: bool = False
    """Whether it was cut (a time limit, a hand) and not ended by what they did."""
    over: bool = True
    """Whether that is the end of the episode for everybody."""
    infos: Annotated[list[Info], FailFast()] = Field(default_factory=list)
    """What the world tells of each one's episode, as `Environment.tell` is told; empty: nothing."""


class Reset(Message):
    """actor -> simulator that does not drive: begin this episode, and observe."""

    type: ClassVar[str] = "reset"
    episode: Ordinal
    seed: Count


class Ping(Message):
    """simulator -> actor: I live; do you?"""

    type: ClassVar[str] = "ping"
    clock: Finite = 0.0
    """Its own, given back."""


class Pong(Message):
    """actor -> simulator, answering `ping`, or by itself: when it stops giving actions for a while, and to see whether
    the connection is there."""

    type: ClassVar[str] = "pong"
    clock: Finite = 0.0
    pace: Literal["going", "waiting"]
    """`waiting`: no actions for now, because training cannot take in more."""


class Fault(Message):
    """actor -> simulator: what you said was not taken in, and why."""

    type: ClassVar[str] = "fault"
    stable: ClassVar[bool] = True
    code: Name
    answers: Count = 0
    """Number of the `observe` that was refused; 0: it was something else."""
    reason: Text
    """One sentence with the remedy."""
    fatal: bool = False
    """Whether it is not served any more."""


class Bye(Message):
    """Either way: that was all."""

    type: ClassVar[str] = "bye"
    reason: Text = ""


def facts_of(place: Place) -> PlaceFacts:
    """What a simulator must know of a place."""
    action = place.agent.action
    return PlaceFacts(
        agent=place.name,
        many=place.capacity or 0,
        observation=_columns(place.observed),
        mask=[] if place.masked is None else _columns(place.masked),
        action=_columns(place.acted),
        atomic=not isinstance(action, Action) or action.atomic,
    )


def _columns(record: RowFormat) -> list[Column]:
    return [
        Column(name=leaf.name, dtype=dtype_of(leaf.space).newbyteorder("<").str, shape=list(leaf.space.shape))
        for leaf in record.leaves
    ]
