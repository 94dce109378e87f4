"""An actor written from protocol/README.md alone: CartPole and its policy in numpy, segments inline, weights asked."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import zmq
from numpy.typing import NDArray

SCHEMA = 2
RECORD = struct.Struct("<6QIIHHI")
PATIENCE, MOST_PATIENCE, GIVE_UP = 2.5, 160.0, 300.0  # seconds in which `ack.announced` does not grow; then it ends
OPTIONS = {"LINGER": 0, "SNDHWM": 100_000, "RCVHWM": 100_000, "HEARTBEAT_IVL": 1000, "HEARTBEAT_TIMEOUT": 30_000}
OPTIONS |= {"TCP_MAXRT": 5000, "CONNECT_TIMEOUT": 2000, "HANDSHAKE_IVL": 5000}
OPTIONS |= {"RECONNECT_IVL": 100, "RECONNECT_IVL_MAX": 1000}
Map = dict[str, Any]
Array = NDArray[Any]
Sock = zmq.Socket[bytes]


class End(Exception):
    """The coordinator said `stop` (no text), or this actor cannot go on (the text goes into `leave.error`)."""


def pack(kind: str, **fields: Any) -> bytes:
    """A header: `type` first, then `schema_number`, then the fields."""
    return bytes(msgpack.packb({"type": kind, "schema_number": SCHEMA, **fields}))


def connect(context: zmq.Context[Any], kind: int, address: str, topic: str = "") -> Sock:
    """A socket that notices a dead network in silence and does not outlive its process."""
    sock = context.socket(kind)
    for name, value in OPTIONS.items():
        sock.setsockopt(getattr(zmq, name), value)
    if topic:
        sock.subscribe(topic)
    sock.connect(address)
    return sock


def arrived(sock: Sock) -> Iterator[tuple[list[bytes], Map]]:
    """The messages that are there and understood here, and the header of each; this never waits."""
    while int(sock.get(zmq.EVENTS)) & zmq.POLLIN:
        parts = sock.recv_multipart()
        header = msgpack.unpackb(parts[sock.get(zmq.TYPE) == zmq.SUB])  # behind the topic, where there is one
        if header["schema_number"] == SCHEMA or header["type"] in ("beacon", "refusal"):
            yield parts, header


def cart_pole(state: list[float], action: int) -> tuple[list[float], bool]:
    """One step of 0.02 s: the next place and speed of the cart, angle and angular speed of the pole; if it fell."""
    x, speed, angle, turning = state
    cosine, sine = math.cos(angle), math.sin(angle)
    push = ((10.0 if action == 1 else -10.0) + 0.05 * turning**2 * sine) / 1.1
    angular = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    forward = push - 0.05 * angular * cosine / 1.1
    state = [x + 0.02 * speed, speed + 0.02 * forward, angle + 0.02 * turning, turning + 0.02 * angular]
    return state, abs(state[0]) > 2.4 or abs(state[2]) > math.radians(12)


def read_weights(header: Map, flat: bytes) -> dict[str, Array]:
    """The entries of the flat weights, as the manifest and `wire` say."""
    entries, end, short = {}, 0, header.get("wire") == "bf16"
    for entry in json.loads(header["entries"]):
        dtype, size, shape = entry["dtype"], math.prod(entry["shape"]), entry["shape"]
        halves = short and dtype == "<f4"
        values = np.frombuffer(flat, "<u2" if halves else dtype, size, end if short else entry["offset"])
        end += values.nbytes
        entries[entry["name"]] = ((values.astype("<u4") << 16).view("<f4") if halves else values).reshape(shape)
    return entries


def choose(network: Map, w: dict[str, Array], x: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Actions, their log-probabilities and values for observations `[N, I]`, by two perceptrons or one for both
    (`actor_critic`)."""
    if network["normalize_observation"]:
        deviation = np.sqrt(w["observations.variance"])
        x = np.clip((x - w["observations.mean"]) / np.maximum(deviation, 1e-4), -10, 10).astype(np.float32)
    p = v = x
    for k, units in enumerate(network["hidden"]):
        weight, bias = w[f"layer_{k}_weight"], w[f"layer_{k}_bias"]
        sides = [p] if network["share_layers"] else [p, v]
        pre = [x @ weight + bias] if k == 0 else [h @ weight[i] + bias[i, 0] for i, h in enumerate(sides)]
        out = [np.tanh(h) if network["activation"] == "tanh" else np.maximum(h, np.float32(0)) for h in pre]
        p, v = (out[0][:, :units], out[0][:, -units:]) if k == 0 else (out[0], out[-1])
    mean = float(w["returns.mean"])
    unit = max(math.sqrt(float(w["returns.variance"])), 0.01 * abs(mean), 1.0)
    values = mean + unit * (v @ w["value_weight"] + w["value_bias"])[:, 0]
    logs = p @ w["policy_weight"] + w["policy_bias"]
    logs -= logs.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))  # now log(softmax(logits))
    actions = np.argmax(logs + rng.gumbel(size=logs.shape), 1)  # a draw from the softmax
    return actions, logs[np.arange(len(logs)), actions], values


class Stream:
    """One copy of the world: its rows, gathered into segments that follow each other without a gap."""

    def __init__(self, index: int, layout: Map, rng: np.random.Generator) -> None:
        self.index, self.fields, self.length, self.rng = index, layout["fields"], layout["length"], rng
        self.sequence, self.state, self.steps = -1, rng.uniform(-0.05, 0.05, 4).tolist(), 0
        self.ended = 0  # episodes
        self.clear()

    def clear(self) -> None:
        """Begins a segment."""
        rows, self.valid, self.truncations, self.sequence = [self.length + 1], 0, 0, self.sequence + 1
        self.episode = self.ended
        self.columns: dict[str, Array] = {n: np.zeros(rows * (per == "row") + s, d) for n, d, s, per in self.fields}
        self.columns["final_row"][:] = -1

    def step(self, action: int, **row: Any) -> list[float]:
        """Acts once and notes the row; the return of the episode, if this ended it."""
        self.columns["observation"][self.valid] = self.state
        (self.state, terminated), self.steps = cart_pole(self.state, action), self.steps + 1
        truncated = self.steps == 500 and not terminated
        row |= {"action": action, "reward": 1.0, "terminated": terminated, "truncated": truncated}
        for name, value in row.items():
            self.columns[name][self.valid] = value
        if truncated:  # the observation that the episode really ended with
            self.columns["final_observation"][self.truncations] = self.state
            self.columns["final_row"][self.truncations] = self.valid
        self.valid, self.truncations = self.valid + 1, self.truncations + truncated
        if not (terminated or truncated):
            return []
        ended, self.state, self.steps = float(self.steps), self.rng.uniform(-0.05, 0.05, 4).tolist(), 0
        self.ended += 1
        return [ended]

    def finish(self, number: int) -> list[bytes]:
        """The segment, full or short: its record and its columns."""
        self.columns["observation"][self.valid] = self.state
        versions = self.columns["version"][: self.valid].tolist()
        about = (self.index, self.sequence, min(versions), max(versions), 0, 0, self.valid, 0)
        word = 2 | self.episode % 2**24 << 8  # finished, and the episode of row 0
        return [RECORD.pack(2, number, *about, word), *(self.columns[name].tobytes() for name, *_ in self.fields)]


class Learner:
    """The learner of the policy: weights that are asked for, and segments that are on their way to it."""

    def __init__(self, context: zmq.Context[Any], welcome: Map) -> None:
        self.context, facts = context, welcome["specs"][0]
        self.credits, self.most, self.policy = facts["credits"], facts["max_inline"], facts["policy"]
        self.who = {key: welcome[key] for key in ("run", "incarnation", "proof")} | {"actor": welcome["name"]}
        self.who |= {"policy": self.policy, "layout": hashlib.sha256(facts["layout"].encode()).hexdigest()[:16]}
        self.route: Map = {}
        self.socks: list[Sock] = []  # of experience, weights and acknowledgements
        self.token, self.request, self.asked = os.urandom(8).hex(), 0, 0.0  # when; 0: nothing is asked for
        self.manifest, self.version, self.entries = "", 0, dict[str, Array]()  # the newest that came
        self.held: dict[int, list[bytes]] = {}  # segments not settled, by number
        self.produced = self.announced = self.settled = self.last = self.heard = 0  # numbers
        self.resent = self.refused = self.torn = 0  # segments, acknowledgements, weights
        self.denied, self.reasons = dict[int, int](), set[str]()  # messages, by incarnation of the learner; why

    def reach(self, route: Map, now: float) -> None:
        """Goes, over new connections, where the learner is; announces again what is not there or not settled."""
        if route != self.route:
            self.route, self.heard, self.grown, self.patience = route, 0, now, PATIENCE
        for sock in self.socks:
            sock.close()
        own, beacons = f"a/{self.policy}/{self.who['actor']}/{self.who['incarnation']}/", f"b/{self.policy}/"
        self.socks = [connect(self.context, zmq.PUSH, route["experience"])]
        self.socks += [connect(self.context, zmq.SUB, route["weights"], beacons)]
        self.socks += [connect(self.context, zmq.SUB, route["acknowledgements"], own)]
        self.asked, self.missing, self.last = 0.0, now, max(self.heard, self.settled)
        self._announce(self.last, self.announced, resent=True)

    def poll(self, now: float) -> None:
        """Reads beacons, weights and acknowledgements, and sends what is due."""
        for parts, header in arrived(self.socks[1]):
            self._hear(parts, header, self.socks[1], now)
        late = False
        for _, ack in arrived(self.socks[2]):
            if ack["type"] != "ack" or ack["acknowledged"] > self.announced:
                self.refused += 1
                continue
            self.settled = max(self.settled, ack["acknowledged"])
            self.denied[ack["learner_incarnation"]] = ack.get("refused", 0)
            if ack.get("reason", "") not in {"", *self.reasons}:
                self.reasons.add(ack["reason"])
                sys.stderr.write(f"the learner refused segments: {ack['reason']}\n")
            late = ack["learner_incarnation"] == self.route["incarnation"] and self._late(ack["announced"], now)
        self.held = {number: frames for number, frames in self.held.items() if number > self.settled}
        if late:
            self.patience = min(2 * self.patience, MOST_PATIENCE)
            self.reach(self.route, now)
        self._announce(self.announced, self.settled + self.credits)

    def _late(self, heard: int, now: float) -> bool:
        """Whether the learner has said for too long that it lacks something."""
        if heard != self.heard:
            self.heard, self.grown, self.missing, self.patience = heard, now, now, PATIENCE
        elif heard >= self.announced:
            self.grown = self.missing = now
        elif now - self.grown > GIVE_UP:
            raise End(f"segments after {heard} did not arrive at the learner in {GIVE_UP:.0f} s")
        return now - self.missing > self.patience

    def _hear(self, parts: list[bytes], header: Map, sock: Sock, now: float) -> None:
        topic, packed = "w/{}/{}/{}/", header.get("incarnation", 0) << 40 | header.get("version", 0)
        asked = topic.format(self.policy, self.token, self.request)
        answer = header.get("type") == "weights" and parts[0] == asked.encode()
        beacon = header.get("type") == "beacon"
        if (answer or beacon) and self.manifest not in ("", header["manifest"]):
            raise End(f"the learner has weights of another network: {header['manifest']}")
        if self.asked and (answer or (beacon and now - self.asked > 3.0)):  # here, or lost: the next beacon asks again
            sock.unsubscribe(asked)
            self.asked = 0.0
            if answer and zlib.crc32(parts[2]) != header["crc"]:
                self.torn += 1
            elif answer and packed > self.version:
                self.version, self.manifest, self.entries = packed, header["manifest"], read_weights(header, parts[2])
        elif beacon and header["version"] > 0 and packed > self.version and not self.asked:
            self.request, self.asked = self.request + 1, now
            sock.subscribe(topic.format(self.policy, self.token, self.request))

    def deliver(self, streams: list[Stream], least: int) -> None:
        """Finishes and numbers the segments of so many rows; `poll` announces them."""
        for stream in streams:
            if stream.valid >= least:
                self.produced += 1
                self.held[self.produced] = stream.finish(self.produced)
                stream.clear()

    def _announce(self, beyond: int, upto: int, resent: bool = False) -> None:
        numbers = [number for number in self.held if beyond < number <= upto]
        for part in (numbers[start : start + self.most] for start in range(0, len(numbers), self.most)):
            after = self.last if self.last > self.settled else 0
            header = pack("segments", **self.who, count=len(part), inline=True, after=after, resent=resent)
            frames = zip(*(self.held[number] for number in part), strict=True)
            self.socks[0].send_multipart([header, *(b"".join(frame) for frame in frames)])
            self.last, self.announced = part[-1], max(self.announced, part[-1])
            self.resent += resent * len(part)


class Actor:
    """Membership of a run, and what is done in each of its states."""

    def __init__(self, context: zmq.Context[Any], coordinator: str) -> None:
        self.context, self.link = context, connect(context, zmq.DEALER, coordinator)
        self.token, self.state, self.command, self.rejoining = os.urandom(8).hex(), "waiting", "go", False
        self.welcome: Map = {}
        self.learner: Learner  # from the welcome on
        self.steps, self.waited, self.adopted, self.heard, self.due = 0, 0.0, 0, time.monotonic(), 0.0
        self.returns, self.told = list[float](), 0  # of all episodes; how many were told
        self.untold, self.sent = list[tuple[str, int, int, float, int]](), 0  # `episodes` not answered; sent of them

    def serve(self, wait: float = 0.0) -> None:
        """Hears and answers everybody; waits for the first of them no longer than this."""
        if wait:
            zmq.select([self.link, *(self.learner.socks[1:] if self.welcome else [])], [], [], wait)
        now = time.monotonic()
        for _, header in arrived(self.link):
            self.heard = now
            self._hear(header.get("type"), header, now)
        if self.welcome and now - self.heard > 10 * self.welcome["lease"]:
            raise End("the coordinator has been silent for ten leases")
        if now >= self.due and (self.rejoining or not self.welcome):
            who = {"role": "actor", "name": self.welcome.get("name", ""), "token": self.token, "pid": os.getpid()}
            who |= {"release": "document", "incarnation": self.welcome.get("incarnation", 0)}
            self.link.send(pack("join", **who, host=os.uname().nodename))
            self.due = now + 1.0
        elif now >= self.due:
            self.link.send(pack("heartbeat", **self._totals(), state=self.state))
            self.due = now + self.welcome["heartbeat"]
        if self.welcome and self.learner.route:
            self.learner.poll(now)

    def _hear(self, kind: object, header: Map, now: float) -> None:
        if kind == "refusal" and not header.get("retry", False):
            raise End(header["reason"])
        if kind == "welcome" and not self.welcome:
            self.welcome, self.due, self.learner = header, now, Learner(self.context, header)
        elif kind == "welcome" and self.rejoining:
            self.rejoining, self.due = False, now
            if any(header[key] != self.welcome[key] for key in ("run", "name", "incarnation")):
                raise End("the coordinator takes this actor for another one now")
        elif kind == "status" and header["command"] == "stop":
            self.command = "stop"
            raise End
        elif kind == "status" and header["command"] == "rejoin":
            self.rejoining, self.due = True, self.due if self.rejoining else now
        elif kind == "status":
            self.command = "drain" if "drain" in (self.command, header["command"]) else "go"
            self.untold, self.sent = self.untold[self.sent :], 0
            for route in header.get("routes", []):
                if route["policy"] == self.learner.policy and route != self.learner.route:
                    if not route.get("oldest_schema", SCHEMA) <= SCHEMA <= route.get("newest_schema", SCHEMA):
                        raise End(f"the learner does not speak schema {SCHEMA}; install a release that does")
                    self.learner.reach(route, now)

    def _totals(self) -> Map:
        policy, way, ended = self.learner.policy, self.learner, self.returns[self.told :]
        length = int(sum(ended))  # CartPole pays 1 a step
        self.untold += [(policy, self.steps, len(ended), sum(ended), length)] if ended else []
        self.told, self.sent = len(self.returns), len(self.untold)
        counters = {"agent_steps": self.steps, "env_steps": self.steps, "refused_acks": way.refused}
        counters |= {f"produced.{policy}": way.produced, f"backlog.{policy}": way.produced - way.announced}
        counters |= {f"refused_messages.{policy}": sum(way.denied.values())}
        counters |= {f"flight.{policy}": way.announced - way.settled, f"resent.{policy}": way.resent}
        totals = {name: float(total) for name, total in counters.items()} | {f"waits.credit.{policy}": self.waited}
        said: Map = {"counters": totals, "episodes": self.untold}
        said |= {"name": self.welcome["name"], "token": self.token, "incarnation": self.welcome["incarnation"]}
        metrics = {f"adopted.{policy}": self.adopted & (1 << 40) - 1, f"torn_reads.{policy}": way.torn}
        return said | {"metrics": {name: float(value) for name, value in metrics.items()}}

    def run(self, copies: int, rng: np.random.Generator) -> None:
        """Joins, waits for weights, acts until its quota is made or it is told to drain, and drains."""
        while not self.welcome:
            self.serve(0.1)
        facts, way, config = self.welcome["specs"], self.learner, json.loads(self.welcome["config"])
        if len(facts) != 1 or config["transport"] == "memory" or "CartPole-v1" not in self.welcome["world"]:
            raise End("this actor plays CartPole-v1 alone, with one policy, and shares no memory")
        layout, network = json.loads(facts[0]["layout"]), json.loads(facts[0]["network"])
        if network["kind"] != "actor_critic":
            raise End(f"this actor knows no network of the kind {network['kind']}")
        streams, turn = [Stream(index, layout, rng) for index in range(copies)], 0
        while not way.version and self.command == "go":
            self.serve(0.1)
        self.state = "acting"
        while self.steps < self.welcome["quota"] and self.command == "go":
            if turn % facts[0]["sync_interval"] == 0:
                self.adopted, entries = way.version, way.entries
            seen = np.array([stream.state for stream in streams], np.float32)
            actions, logs, values = choose(network, entries, seen, rng)
            for stream, action, log, value in zip(streams, actions.tolist(), logs, values, strict=True):
                self.returns += stream.step(action, version=self.adopted, log_probability=log, value=value)
            way.deliver(streams, layout["length"])
            turn, self.steps = turn + 1, self.steps + copies
            self.serve()
            began = time.monotonic()
            while way.produced > way.announced and self.command == "go":  # no credit
                self.serve(0.1)
            self.waited += time.monotonic() - began
        way.deliver(streams, 1)  # no step is left unfinished
        self.state, until = "draining", time.monotonic() + config["learner_timeout"]
        while way.held and time.monotonic() < until:
            self.serve(0.1)

    def leave(self, error: str) -> None:
        """Says so each second until it is answered, or five seconds have passed."""
        for _ in range(5):
            self.link.send(pack("leave", **self._totals(), error=error))
            while self.link.poll(1000):
                if any(header.get("command") == "stop" for _, header in arrived(self.link)):
                    return


def main() -> None:
    """Runs one actor, and ends with status 1 after an error."""
    parser = argparse.ArgumentParser(description="An actor that plays CartPole-v1.")
    parser.add_argument("--coordinator", required=True, metavar="tcp://HOST:PORT")
    parser.add_argument("--copies", type=int, default=32, help="copies of the world")
    options, context, summary = parser.parse_args(), zmq.Context[Any](), {"error": ""}
    actor = Actor(context, options.coordinator)
    try:
        actor.run(options.copies, np.random.default_rng())
    except End as end:
        summary["error"] = str(end)
    if actor.welcome:
        if actor.command != "stop":
            actor.leave(summary["error"])
        summary |= {key: getattr(actor.learner, key) for key in ("produced", "settled", "resent")}
    tenths = [part.mean() for part in np.array_split(np.array(actor.returns), 10) if len(part)]
    sys.stdout.write(json.dumps({**summary, "steps": actor.steps, "returns": tenths}) + "\n")
    context.destroy(linger=0)
    sys.exit(bool(summary["error"]))


if __name__ == "__main__":
    main()
