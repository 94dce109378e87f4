"""The typed messages, one class each. Every message names its type and schema; frames that follow it are raw arrays."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol import SCHEMA

__all__ = [
    "Ack",
    "Beacon",
    "Beat",
    "Error",
    "Join",
    "Leave",
    "Message",
    "Pulse",
    "Refusal",
    "Route",
    "Segments",
    "Weights",
    "Welcome",
]

Name = Annotated[str, Field(min_length=1, max_length=128)]
Label = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""The name of a worker or policy: it becomes part of file names and topics."""
Text = Annotated[str, Field(max_length=65_536)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Role = Literal["actor", "learner", "supervisor", "observer"]


class Message(BaseModel):
    """What all messages share."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    type: ClassVar[str]
    arrays: ClassVar[bool] = False
    """Whether raw frames follow the header."""
    schema_number: Count = SCHEMA


class Route(BaseModel):
    """Where the learner of one policy can be reached."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    policy: Label
    learner: Label
    incarnation: Count
    experience: Name
    weights: Name
    acknowledgements: Name


class Segments(Message):
    """actor -> learner (PUSH): finished segments. Frame 1: a RECORD a segment; `inline`: then one frame a field."""

    type: ClassVar[str] = "segments"
    arrays: ClassVar[bool] = True
    run: Name
    actor: Label
    incarnation: Annotated[int, Field(ge=1, lt=2**63)]
    policy: Label
    layout: Name
    count: Annotated[int, Field(ge=1, lt=2**32)]
    inline: bool
    ring: str = Field(default="", max_length=4096)
    nonce: str = Field(default="", max_length=64)
    resent: bool = False


class Ack(Message):
    """learner -> actor (XPUB): all segments of this actor incarnation up to number `settled` are settled."""

    type: ClassVar[str] = "ack"
    policy: Label
    learner_incarnation: Count
    actor: Label
    incarnation: Count
    settled: Count
    announced: Count
    """The highest number whose header has arrived."""


class Beacon(Message):
    """learner -> actors (XPUB, once a second): the newest version and where this node's mailbox is."""

    type: ClassVar[str] = "beacon"
    policy: Label
    incarnation: Count
    version: Count
    manifest: Name
    nbytes: Count
    mailbox: str = Field(default="", max_length=4096)
    nonce: Count = 0


class Weights(Message):
    """learner -> actors (XPUB): a whole snapshot. Frame 1: the flat bytes."""

    type: ClassVar[str] = "weights"
    arrays: ClassVar[bool] = True
    policy: Label
    incarnation: Count
    version: Count
    manifest: Name
    crc: Count


class Join(Message):
    """worker -> coordinator: may I take part? `name` empty: choose one for me."""

    type: ClassVar[str] = "join"
    role: Role
    name: str = Field(default="", max_length=128, pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$")
    token: Name
    """Random for each process: the same identity may rejoin, another process may not claim it."""
    release: Name
    host: Name
    pid: Count
    incarnation: Count = 0
    """What this process was given before, when it rejoins."""
    world: str = Field(default="", max_length=1_000_000)
    routes: list[Route] = Field(default_factory=list)


class Welcome(Message):
    """coordinator -> worker: who you are and everything else you need."""

    type: ClassVar[str] = "welcome"
    run: Name
    name: Label
    incarnation: Count
    config: str = Field(max_length=1_000_000)
    world: str = Field(max_length=1_000_000)
    run_dir: str = Field(default="", max_length=4096)
    policies: list[Label]
    """The policies a learner serves, or all policies."""
    index: Count = 0
    """Position among the workers of this role."""
    quota: Count = 0
    """Agent steps an actor may make."""
    lease: float
    """Seconds without a heartbeat until membership ends."""
    beat: float
    """Seconds between heartbeats."""
    learners: Count = 0
    actors: Count = 0
    """Processes the run wants, for a supervisor."""


class Refusal(Message):
    """coordinator -> worker: no, and what to do."""

    type: ClassVar[str] = "refusal"
    reason: Text
    retry: bool = False
    """True: not yet; ask again."""


class Beat(Message):
    """worker -> coordinator, periodically: I live; counters and measurements."""

    type: ClassVar[str] = "beat"
    name: Name
    token: Name
    incarnation: Count
    state: Name
    routes: list[Route] = Field(default_factory=list)
    counters: dict[Name, float] = Field(default_factory=dict)
    metrics: dict[Name, float] = Field(default_factory=dict)
    episodes: list[tuple[Name, Count, Count, float]] = Field(default_factory=list)
    """(policy, agent steps made so far, episodes, sum of returns) since the last beat."""


class Pulse(Message):
    """coordinator -> worker, answering a beat."""

    type: ClassVar[str] = "pulse"
    command: Literal["go", "drain", "stop", "rejoin"]
    routes: list[Route] = Field(default_factory=list)
    actors: list[tuple[Name, Count]] = Field(default_factory=list)
    """(name, incarnation) of the living actors."""
    quota: Count = 0
    view: dict[str, Any] = Field(default_factory=dict)
    """The state of the run, for a supervisor or observer."""


class Leave(Message):
    """worker -> coordinator: I end. `error` is empty or a traceback."""

    type: ClassVar[str] = "leave"
    name: Name
    token: Name
    incarnation: Count
    counters: dict[Name, float] = Field(default_factory=dict)
    metrics: dict[Name, float] = Field(default_factory=dict)
    episodes: list[tuple[Name, Count, Count, float]] = Field(default_factory=list)
    error: Text = ""


class Error(Message):
    """worker -> coordinator: something went wrong that I survive, told once."""

    type: ClassVar[str] = "error"
    name: Name
    token: Name
    incarnation: Count
    message: Text
