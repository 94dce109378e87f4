"""What the files of protocol/golden hold: one small session, byte by byte, for whoever speaks the wire.

`python -m tests.protocol.golden_vectors` writes the files that are not there yet. Those that are there are the
specification: to change one, delete it on purpose, and say in the change which schema number it belongs to.

A file is JSON: `fields` and, as hexadecimal text, the `frames` (a message), the `bytes` (a record, a word) or, for
memory that is mostly zero, `size` and the `pieces` by offset that are not zero.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from protocol.config.run import PolicyConfig
from protocol.conformance.golden import GOLDEN as FOLDER
from protocol.experience.layout import Layout, segment_layout
from protocol.experience.proof import proof_of
from protocol.experience.ring_buffer import RECORD, Ring
from protocol.messages.codec import encode
from protocol.messages.core import (
    Ack,
    Beacon,
    Fetch,
    FetchGraph,
    Graph,
    Heartbeat,
    Join,
    Leave,
    Message,
    Part,
    PolicySpec,
    Refusal,
    Route,
    Segments,
    Status,
    Weights,
    Welcome,
)
from protocol.messages.simulator import Act, Admit, Bye, End, Fault, Hello, Observe, Ping, Pong, Reset, facts_of
from protocol.spaces import Agent, Box, Discrete, World
from protocol.weights.manifest import Version, pack
from protocol.weights.shared_snapshot import SharedSnapshot

__all__ = ["FOLDER", "LAYOUT", "MANIFEST", "NONCE", "vectors"]

RUN, ACTOR, POLICY, TOKEN, NONCE = "0123abcd", "actor-0", "gem", "00112233445566ff", "8899aabbccddeeff"
SECRET = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
PROOF = proof_of(SECRET, RUN, ACTOR, 1)
WORLD = World(
    id="walk", agents=(Agent(name="gem", observation=Box(shape=(2,)), action=Discrete(n=2)),), episode_steps=10
)
LAYOUT: Layout = segment_layout(WORLD, WORLD.places[0], PolicyConfig(segment_length=2))
MANIFEST = json.dumps(
    [
        {"name": "policy_weight", "dtype": "<f4", "shape": [2, 2], "offset": 0},
        {"name": "policy_bias", "dtype": "<f4", "shape": [2], "offset": 64},
        {"name": "returns.mean", "dtype": "<f8", "shape": [], "offset": 128},
    ],
    separators=(",", ":"),
)
MANIFEST_HASH = hashlib.sha256(MANIFEST.encode()).hexdigest()[:16]
VERSION = Version(1, 5)
LIBRARY_FILE = b"a member, frozen"
GRAPH = b"a graph, without weights"
LIBRARY_CHECKSUM = hashlib.blake2b(LIBRARY_FILE, digest_size=16).hexdigest()


def flat_weights() -> np.ndarray:
    """[192] uint8: what MANIFEST describes."""
    flat = np.zeros(192, np.uint8)
    flat[:16].view("<f4")[:] = [0.5, -0.5, 1.0, 2.0]
    flat[64:72].view("<f4")[:] = [0.25, -1.5]
    flat[128:136].view("<f8")[:] = 3.0
    return flat


def columns() -> dict[str, np.ndarray]:
    """[1, ...] by field: one segment of two steps, the second one truncated."""
    found = {field.name: np.zeros(LAYOUT.shape(field, 1), field.dtype) for field in LAYOUT.fields}
    found["observation"][0] = [[1.0, 2.0], [3.0, 4.0], [0.0, 0.5]]
    found["action"][0] = [1, 0, 0]
    found["reward"][0] = [0.5, -1.0, 0.0]
    found["truncated"][0] = [False, True, False]
    found["version"][0] = [pack(VERSION), pack(VERSION), 0]
    found["log_probability"][0] = [-0.75, -0.5, 0.0]
    found["value"][0] = [1.25, 1.5, 0.0]
    found["final_observation"][0] = [[5.0, 6.0]]
    found["final_row"][0] = [1]
    return found


def record(slot: int = 0, sequence: int = 2) -> np.ndarray:
    """[1] of RECORD: that segment, which is the first of its stream."""
    made = np.zeros(1, RECORD)
    made["sequence"], made["number"], made["stream"], made["stream_sequence"] = sequence, 1, 3, 0
    made["version_min"] = made["version_max"] = pack(VERSION)
    made["slot"], made["valid"], made["before"], made["state"] = slot, 2, 0, 2
    return made


ROUTE = Route(
    policy=POLICY,
    learner="learner-gem",
    incarnation=1,
    experience="tcp://10.0.0.2:5611",
    weights="tcp://10.0.0.2:5612",
    acknowledgements="tcp://10.0.0.2:5613",
    node="node-2",
)
_FACTS = PolicySpec(
    policy=POLICY,
    agents=["gem"],
    layout=json.dumps(LAYOUT.describe(), separators=(",", ":")),
    network=json.dumps(
        {
            "kind": "actor_critic",
            "observation": [2],
            "inputs": [{"column": "observation", "at": 0, "width": 2, "choices": []}],
            "actions": 2,
            "outputs": [{"column": "action", "sizes": [2], "start": [0], "masked": False}],
            "hidden": [],
            "activation": "tanh",
            "normalize_observation": False,
            "share_layers": False,
            "recurrent": None,
            "recurrent_size": 128,
        },
        separators=(",", ":"),
    ),
    mode="stream",
    credits=4,
    max_inline=6,
    sync_interval=50,
)
_SEGMENTS = Segments(
    run=RUN, actor=ACTOR, incarnation=1, proof=PROOF, policy=POLICY, layout=LAYOUT.hash, count=1, inline=True
)


def messages() -> dict[str, tuple[Message, list[bytes]]]:
    """name -> message and the frames after its header, in the order of a session."""
    identity: dict[str, Any] = {"name": ACTOR, "token": TOKEN, "incarnation": 1}
    weights = flat_weights()
    ring = f"/dev/shm/rookery-{RUN}-{ACTOR}.1-{POLICY}.ring"
    return {
        "join": (Join(role="actor", token=TOKEN, release="0.1.0", host="node-7", pid=4242, node="node-7"), []),
        "refusal": (
            Refusal(
                reason="all actors of this run are there; raise actors or stop one of them [all_places_taken]",
                kind="all_places_taken",
                field="actors",
            ),
            [],
        ),
        "welcome": (
            Welcome(
                run=RUN,
                name=ACTOR,
                incarnation=1,
                config='{"transport":"auto"}',
                world=WORLD.model_dump_json(),
                policies=[POLICY],
                specs=[_FACTS],
                quota=1000,
                lease=10.0,
                heartbeat=1.0,
                learners=1,
                actors=1,
                proof=PROOF,
            ),
            [],
        ),
        "heartbeat": (
            Heartbeat(
                **identity,
                state="acting",
                counters={"agent_steps": 128.0, "env_steps": 128.0},
                metrics={"adopted.gem": 5.0},
                episodes=[(POLICY, 128, 2, -1.5, 40)],
            ),
            [],
        ),
        "status": (Status(command="go", routes=[ROUTE], actors=[(ACTOR, 1)]), []),
        "beacon": (
            Beacon(
                policy=POLICY,
                incarnation=VERSION.incarnation,
                version=VERSION.version,
                manifest=MANIFEST_HASH,
                nbytes=len(weights),
                mailbox=f"/dev/shm/rookery-{RUN}-{POLICY}.weights",
                nonce=int(NONCE, 16) >> 1,
            ),
            [],
        ),
        "weights": (
            Weights(
                policy=POLICY,
                incarnation=VERSION.incarnation,
                version=VERSION.version,
                manifest=MANIFEST_HASH,
                entries=MANIFEST,
                crc=zlib.crc32(weights.data),
            ),
            [weights.tobytes()],
        ),
        "segments-inline": (_SEGMENTS, [record().tobytes(), *(column.tobytes() for column in columns().values())]),
        "segments-ring": (
            _SEGMENTS.model_copy(update={"inline": False, "ring": ring, "nonce": NONCE}),
            [record().tobytes()],
        ),
        "ack": (Ack(policy=POLICY, learner_incarnation=1, actor=ACTOR, incarnation=1, acknowledged=1, announced=1), []),
        "fetch": (Fetch(**identity, member=f"{POLICY}/0", checksum=LIBRARY_CHECKSUM, offset=0), []),
        "part": (
            Part(member=f"{POLICY}/0", checksum=LIBRARY_CHECKSUM, offset=0, size=len(LIBRARY_FILE)),
            [LIBRARY_FILE],
        ),
        "fetch_graph": (FetchGraph(**identity, policy=POLICY), []),
        "graph": (Graph(policy=POLICY, opset=18, hash=hashlib.sha256(GRAPH).hexdigest()), [GRAPH]),
        "leave": (Leave(**identity, counters={"agent_steps": 1000.0, "env_steps": 1000.0}), []),
        **simulation(),
    }


def simulation() -> dict[str, tuple[Message, list[bytes]]]:
    """A simulator's session in WORLD: two steps of an episode, which is then cut."""
    seen = [np.array(row, "<f4").tobytes() for row in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0])]
    text = WORLD.model_dump_json()
    return {
        "hello": (Hello(name="robot-1", token=TOKEN, software="robot 2.1"), []),
        "admit": (
            Admit(
                run=RUN,
                name="robot-1",
                incarnation=1,
                copy_number=0,
                hash=hashlib.sha256(text.encode()).hexdigest()[:16],
                world=text,
                places=[facts_of(place) for place in WORLD.places],
                lease=10.0,
                largest=65_536,
                rate=20_000,
            ),
            [],
        ),
        "reset": (Reset(episode=1, seed=17), []),
        "observe": (Observe(number=1, episode=1, agents=["gem"]), [seen[0]]),
        "act": (Act(answers=1, episode=1, waited=0.25), [np.array(1, "<i8").tobytes()]),
        "observe-rewarded": (Observe(number=2, episode=1, agents=["gem"], rewards=[0.5], clock=2.5), [seen[1]]),
        "end": (End(episode=1, agents=["gem"], rewards=[-1.0], truncated=True), [seen[2]]),
        "end-told": (End(episode=1, agents=["gem"], rewards=[-1.0], infos=[{"far": 2.5, "won": True}]), []),
        "ping": (Ping(clock=1.5), []),
        "pong": (Pong(clock=1.5, pace="going"), []),
        "fault": (Fault(code="agent", answers=3, reason="there is no agent 'ruby'; the agents are gem"), []),
        "bye": (Bye(reason="its battery is empty"), []),
    }


def vectors() -> dict[str, dict[str, Any]]:
    """name -> what its file holds."""
    made: dict[str, dict[str, Any]] = {}
    for name, (message, frames) in messages().items():
        fields = {"type": message.type, **message.model_dump(mode="json")}
        fields = {name: value for name, value in fields.items() if value or name not in message.omitted}
        made[name] = {"fields": fields, "frames": [frame.hex() for frame in (encode(message), *frames)]}
    one = record()
    made["record"] = {
        "fields": {name: one[name][0].tolist() for name in one.dtype.names or ()},
        "bytes": one.tobytes().hex(),
    }
    made["version"] = {"fields": VERSION._asdict(), "bytes": pack(VERSION).to_bytes(8, "little").hex()}
    made["layout"] = {"fields": LAYOUT.describe(), "text": _FACTS.layout, "hash": LAYOUT.hash}
    made["manifest"] = {"fields": json.loads(MANIFEST), "text": MANIFEST, "hash": MANIFEST_HASH}
    made["ring"] = {
        "fields": {
            "layout": LAYOUT.hash,
            "slots": 2,
            "nonce": NONCE,
            "checksums": True,
            "segment": "record, in slot 1",
        },
        **memory(write_ring),
    }
    made["mailbox"] = {
        "fields": {**VERSION._asdict(), "manifest": MANIFEST_HASH, "mode": "double_buffer", "weights": "see weights"},
        **memory(write_mailbox),
    }
    return made


def write_ring(path: Path) -> Ring:
    """A ring of two slots with checksums; the segment lies in the second one, the first one is poison."""
    with patch("protocol.experience.ring_buffer.secrets.token_hex", return_value=NONCE):
        ring = Ring.create(path, LAYOUT, 2, checksums=True)
    slots = slice(1, 2)
    ring.begin(slots)
    for name, column in columns().items():
        ring.columns[name][slots] = column
    for name in ("stream", "stream_sequence", "version_min", "version_max"):
        ring.table[name][slots] = record()[name]
    ring.finish(slots, [1], 2, 0)
    return ring


def write_mailbox(path: Path) -> SharedSnapshot:
    """A mailbox with two copies, published once, on a processor with ordered stores."""
    with ExitStack() as stack:
        stack.enter_context(patch("protocol.weights.shared_snapshot.secrets.randbits", return_value=int(NONCE, 16)))
        stack.enter_context(patch("protocol.weights.shared_snapshot.ORDERED_STORES", True))
        mailbox = SharedSnapshot.create(path, 192, MANIFEST_HASH, "double_buffer")
        mailbox.write(flat_weights(), VERSION)
    return mailbox


def memory(write: Callable[[Path], Ring | SharedSnapshot]) -> dict[str, Any]:
    """The file that `write` makes, as size and pieces of 64 bytes that are not zero, adjacent ones joined."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rookery-golden"
        held = write(path)
        raw = path.read_bytes()
        held.remove()
    pieces: dict[str, str] = {}
    start = None
    for at in range(0, len(raw) + 1, 64):
        empty = at >= len(raw) or not any(raw[at : at + 64])
        if not empty and start is None:
            start = at
        elif empty and start is not None:
            pieces[str(start)] = raw[start:at].hex()
            start = None
    return {"size": len(raw), "pieces": pieces}


def main() -> None:
    """Writes what is not there yet."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in vectors().items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
            print(path)  # noqa: T201 - what the command tells


if __name__ == "__main__":
    main()
