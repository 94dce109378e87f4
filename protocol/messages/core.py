"""The typed messages, one class each. Every message names its type and schema; frames that follow it are raw arrays.

The tables of protocol/README.md say the same for those who do not read Python; a test compares the two.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, Strict

from protocol import OLDEST_SCHEMA, SCHEMA

Name = Annotated[str, Field(min_length=1, max_length=128)]
Label = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""The name of a worker or policy: it becomes part of file names and topics."""
Claim = Annotated[str, Field(max_length=128, pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$")]
"""A label, or empty."""
Path = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
Nonce = Annotated[str, Field(max_length=64)]
Text = Annotated[str, Field(max_length=65_536)]
Document = Annotated[str, Field(max_length=1_000_000)]
"""JSON."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Ordinal = Annotated[int, Field(ge=1, lt=2**63)]
"""A number that counts from 1."""
Incarnation = Annotated[int, Field(ge=0, lt=2**24)]
"""How many times a name has joined. With a version it fits into one word."""
Publication = Annotated[int, Field(ge=0, lt=2**40)]
"""The version of weights."""
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Episodes = Annotated[tuple[Name, Count, Count, Finite, Count], Strict(False)]
"""(policy, agent steps made so far, episodes, sum of returns, sum of lengths). Arrives as a list; what is in it is
strict."""
Span = Annotated[tuple[Count, Count], Strict(False)]
Actor = Annotated[tuple[Name, Incarnation], Strict(False)]
"""(name, incarnation)."""
Role = Literal["actor", "learner", "relay", "evaluator", "supervisor"]
State = Literal["starting", "waiting", "acting", "learning", "relaying", "evaluating", "watching", "paused", "draining"]
Command = Literal["go", "pause", "drain", "stop", "rejoin"]


class MessagePart(BaseModel):
    """A part of a message: as it is said, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Message(MessagePart):
    """What all messages share."""

    type: ClassVar[str]
    arrays: ClassVar[bool] = False
    """Whether raw frames follow the header."""
    stable: ClassVar[bool] = False
    """Whether it is understood whatever its schema number, and what is unknown in it is ignored."""
    omitted: ClassVar[frozenset[str]] = frozenset()
    """Fields that are not sent where they are empty."""
    schema_number: Count = SCHEMA


class Route(MessagePart):
    """Where the learner of one policy can be reached, perhaps by way of relays, and which schemas it speaks."""

    policy: Label
    learner: Label
    incarnation: Incarnation
    experience: Name
    weights: Name
    acknowledgements: Name
    node: Claim = ""
    """The learner's."""
    experience_relay: Incarnation = 0
    """Of the relay that `experience` is the address of; 0: it is the learner's own."""
    weights_relay: Incarnation = 0
    """Of the relay that `weights` is the address of; 0: it is the learner's own."""
    oldest_schema: Ordinal = OLDEST_SCHEMA
    newest_schema: Ordinal = SCHEMA


class PolicySpec(MessagePart):
    """What an actor must know of one policy and need not derive from the configuration."""

    policy: Label
    agents: Annotated[list[Name], FailFast()]
    """The agents of the world that it plays."""
    layout: Document
    """What the hash of its segments' layout is computed from."""
    network: Document
    """How actions follow from the weights."""
    mode: Literal["stream", "replay"]
    credits: Ordinal
    """Segments that an actor may have announced and not settled."""
    max_inline: Ordinal
    """Segments in a message with columns."""
    sync_interval: Ordinal
    """Turns from one look for new weights to the next."""
    common: Document = ""
    """What the hash of the layout of common observations is computed from; empty: there are none."""


class CommonRows(MessagePart):
    """Where the moments lie that segments refer to: in a ring on this node, or in frames of this and earlier messages
    over the same connection."""

    ring: Path = ""
    nonce: Nonce = ""
    writer: Count = 0
    """Whose blocks in that ring."""
    sent: Annotated[list[Span], FailFast()] = Field(default_factory=list)
    """(first moment, moments) of each frame behind the columns, all in one block."""
    alive: Annotated[list[Span], FailFast()] = Field(default_factory=list)
    """(first, last) of the blocks that this or later messages may refer to; all others may be forgotten."""


class Segments(Message):
    """actor -> learner (PUSH): finished segments. Frame 1: a RECORD a segment; `inline`: then one frame a field."""

    type: ClassVar[str] = "segments"
    arrays: ClassVar[bool] = True
    run: Name
    actor: Label
    incarnation: Annotated[int, Field(ge=1, lt=2**24)]
    proof: Name
    """That it is this actor who says so (protocol/experience/proof.py)."""
    policy: Label
    layout: Name
    count: Annotated[int, Field(ge=1, lt=2**32)]
    inline: bool
    ring: Path = ""
    nonce: Nonce = ""
    after: Count = 0
    """The last number announced before these that may still be on its way; 0: none is."""
    compressed: Annotated[list[Name], FailFast()] = Field(default_factory=list)
    """Fields whose frame is compressed (zstd)."""
    resent: bool = False
    common: CommonRows | None = None
    """Where agents see something in common."""
    refused: Text = ""
    """A relay's: why it refused the newest of `count` messages of this actor; nothing follows."""


class Ack(Message):
    """learner -> actor (XPUB): all segments of this actor incarnation up to number `acknowledged` are settled."""

    type: ClassVar[str] = "ack"
    policy: Label
    learner_incarnation: Incarnation
    actor: Label
    incarnation: Incarnation
    refused: Count = 0
    """Messages of this actor incarnation that this learner refused."""
    reason: Text = ""
    """Why the newest of them was, in one sentence with its kind."""
    acknowledged: Count
    announced: Count
    """The highest number whose header has arrived."""


class Beacon(Message):
    """learner -> actors (XPUB, once a second): the newest version and where this node's mailbox is."""

    type: ClassVar[str] = "beacon"
    stable: ClassVar[bool] = True
    policy: Label
    incarnation: Incarnation
    version: Publication
    manifest: Name
    nbytes: Count
    mailbox: Path = ""
    nonce: Count = 0


class Weights(Message):
    """learner -> the actor that asked (XPUB): a whole snapshot. Frame 1: the flat bytes, packed as `wire` says."""

    type: ClassVar[str] = "weights"
    arrays: ClassVar[bool] = True
    policy: Label
    incarnation: Incarnation
    version: Publication
    manifest: Name
    entries: Document
    """What the manifest's hash is computed from: name, dtype, shape and byte offset of each entry, in order."""
    wire: Literal["float32", "bf16"] = "float32"
    crc: Count
    """Of frame 1."""


class Join(Message):
    """worker -> coordinator: may I take part? `name` empty: choose one for me; `learner-N`: the learner of index N."""

    type: ClassVar[str] = "join"
    stable: ClassVar[bool] = True
    role: Role
    name: Claim = ""
    token: Name
    """Random for each process: the same identity may rejoin, another process may not claim it."""
    release: Name
    host: Name
    pid: Count
    node: Claim = ""
    """Workers that name the same one share memory; empty: with nobody."""
    incarnation: Incarnation = 0
    """What this process was given before, when it rejoins."""
    oldest_schema: Ordinal = OLDEST_SCHEMA
    newest_schema: Ordinal = SCHEMA


class Welcome(Message):
    """coordinator -> worker: who you are and everything else you need."""

    type: ClassVar[str] = "welcome"
    omitted: ClassVar[frozenset[str]] = frozenset({"roster"})
    run: Name
    name: Label
    incarnation: Incarnation
    config: Document
    world: Document
    run_dir: Path = ""
    policies: Annotated[list[Label], FailFast()]
    """The policies a learner serves, or all policies."""
    specs: Annotated[list[PolicySpec], FailFast()] = Field(default_factory=list)
    """What actors and relays must know of each policy."""
    index: Count = 0
    """Position among the workers of this role, from 0."""
    quota: Count = 0
    """Agent steps an actor may make."""
    lease: Seconds
    """Seconds without a heartbeat until membership ends."""
    heartbeat: Seconds
    """Seconds between heartbeats."""
    learners: Count = 0
    actors: Count = 0
    """Processes the run wants, for a supervisor."""
    proof: Claim = ""
    """For an actor: what its segments carry."""
    secret: Claim = ""
    """For a learner or a relay: what proofs are checked by."""
    roster: dict[str, Any] = Field(default_factory=dict)
    """For actors, learners and supervisors: what the run was told of its policies while it went on, if anything."""


class Refusal(Message):
    """coordinator -> worker: no, and what to do."""

    type: ClassVar[str] = "refusal"
    stable: ClassVar[bool] = True
    reason: Text
    retry: bool = False
    """True: not yet; ask again."""
    kind: Claim = ""
    """The reason's, by which programs tell one from another."""
    field: Text = ""
    value: Text = ""
    limit: Text = ""
    """What of the message is wrong, what it holds there, and what it may hold, as far as there is such a thing."""


class Heartbeat(Message):
    """worker -> coordinator, periodically: I live; counters and measurements."""

    type: ClassVar[str] = "heartbeat"
    name: Name
    token: Name
    incarnation: Incarnation
    state: State
    routes: Annotated[list[Route], FailFast()] = Field(default_factory=list)
    counters: dict[Name, Finite] = Field(default_factory=dict)
    metrics: dict[Name, float] = Field(default_factory=dict)
    episodes: Annotated[list[Episodes], FailFast(), Field(max_length=1000)] = Field(default_factory=list)
    """What ended since the last heartbeat."""


class Status(Message):
    """coordinator -> worker, answering a heartbeat, or unasked: there are new orders."""

    type: ClassVar[str] = "status"
    command: Command
    routes: Annotated[list[Route], FailFast()] = Field(default_factory=list)
    actors: Annotated[list[Actor], FailFast()] = Field(default_factory=list)
    """For a learner or a relay: the living actors."""
    view: dict[str, Any] = Field(default_factory=dict)
    """For a supervisor the state of the run; of it for an evaluation `made` and `complete`, for a learner
    `evaluations` and `roster`, for an actor `roster`, `league` and `curriculum`."""
    returns: dict[Name, Finite] = Field(default_factory=dict)
    """For a learner: mean return of the newest hundred episodes or so of each policy."""
    checkpoints: Count = 0
    """How often checkpoints were asked for; a learner writes one when it grew."""


class Leave(Message):
    """worker -> coordinator: I end. `error` is empty or a traceback."""

    type: ClassVar[str] = "leave"
    name: Name
    token: Name
    incarnation: Incarnation
    counters: dict[Name, Finite] = Field(default_factory=dict)
    metrics: dict[Name, float] = Field(default_factory=dict)
    episodes: Annotated[list[Episodes], FailFast(), Field(max_length=1000)] = Field(default_factory=list)
    error: Text = ""


PART_BYTES = 2**20
"""Most bytes of a part."""
Checksum = Annotated[str, Field(max_length=32, pattern=r"^[0-9a-f]{32}$")]
"""blake2b of a whole file, 16 bytes in hex."""
Digest = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hex."""


class Fetch(Message):
    """actor or learner -> coordinator, over a connection of its own: the bytes of a member from `offset` on."""

    type: ClassVar[str] = "fetch"
    name: Label
    """Of the worker, as in its heartbeats; so `token` and `incarnation`."""
    token: Name
    incarnation: Incarnation
    member: Name
    checksum: Checksum
    offset: Count


class Part(Message):
    """coordinator -> actor or learner, answering a `fetch`. Frame 1: bytes of the member's file from `offset` on."""

    type: ClassVar[str] = "part"
    arrays: ClassVar[bool] = True
    member: Name
    checksum: Checksum
    offset: Count
    size: Count
    """Of the whole file."""


OPSET = 18
"""Of the ONNX operations in graphs."""
GRAPH_BYTES = 4 * 2**20
"""Most bytes of a graph."""


class FetchGraph(Message):
    """worker -> coordinator: the graph of a policy's network, which its learner exports once somebody asks."""

    type: ClassVar[str] = "fetch_graph"
    name: Label
    """Of the worker, as in its heartbeats; so `token` and `incarnation`."""
    token: Name
    incarnation: Incarnation
    policy: Label


class Graph(Message):
    """coordinator -> worker, answering a `fetch_graph`. Frame 1: an ONNX file without weights."""

    type: ClassVar[str] = "graph"
    arrays: ClassVar[bool] = True
    policy: Label
    opset: Ordinal
    """Of its operations."""
    hash: Digest
    """Of frame 1."""
