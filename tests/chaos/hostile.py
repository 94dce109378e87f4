"""`python -m tests.chaos.hostile --minutes 30`: a run beside hostile peers, and whether anybody but them is harmed.

In flows: attacks (attacks.py), each in a process of its own, in turn on the run and on a sink that reads and drops.
Out flow: a table, and what does not hold: a process that ended, memory that grew, training that was slower, books that
do not balance. The run is a coordinator, a learner and actors that were started by hand, half of them as if on another
node, so that nobody starts again whom an attack ended; the place of one more actor is the attackers'. Only strangers
attack a run with keys: whoever has one is no stranger.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Process
from pathlib import Path
from typing import Any

import click
import msgpack
import psutil
import zmq

from protocol.experience.ack_publisher import ack_topic
from protocol.memory.shared_file import read_counters
from protocol.simulator.connection import addresses_of
from protocol.transport.sockets import connect, open_context
from tests.chaos.attacks import ATTACKS, KEYED, MEMBERS, REASONS, SERVED, Target
from tests.chaos.audit import audit_books
from tests.chaos.worlds import WORLDS
from tests.faults import kinds_in
from tests.flows import runs

__all__ = ["SIMULATORS", "Besieged", "Phase", "besiege"]

_NOISE = f"{sys.executable} -m launch simulate noise --connect {{address}} --name {{name}}"
_AGENT = {
    "name": "gate",
    "observation": {"kind": "box", "shape": [2]},
    "action": {"kind": "discrete", "n": 3},
    "action_mask": True,
}
SIMULATORS: dict[str, Any] = {
    "environment": {
        "id": "external",
        "copies": 2,
        "settings": {"world": {"id": "gates", "agents": [_AGENT]}, "command": _NOISE},
    },
    "policy": {"algorithm": runs.PPO, "segment_length": 16, "publish_interval": 1, "sync_interval": 1},
}
"""A run of an agent with a mask, whose actors serve simulators that they start."""
_REFUSED = re.compile(
    r"refus|quarantin|repeated|duplicat|reject|out_of_order|invalid|torn|stranger|limit|failed|future|unexplained"
)
_UNKNOWN = 'refusals_total{event="handshake_refused",kind="unknown_key"}'
_TOLD_WITHIN = 30.0
"""Seconds, of which a learner that has its turn needs one."""
_MIB = 2**20
_WHOLE = 10.0
"""Seconds of an attack below which neither memory nor rates say anything."""


@dataclass
class Phase:
    """One attack: what was sent, what the run said, and what did not hold."""

    attack: str
    sent: dict[str, float]
    said: dict[str, float]
    rates: tuple[float, float]
    """Segments a second that were trained on beside the attack, and beside the same on a sink."""
    peak: float
    """MiB by which the process that grew most did meanwhile."""
    log: int
    """Bytes that all logs grew by."""
    findings: list[str]

    def row(self) -> str:
        """Of the table."""
        sent, seconds = Counter(self.sent), self.sent.get("seconds") or 1
        rates = [f"{sent[name] / seconds:,.0f}" for name in ("bytes", "messages")]
        said = ", ".join(f"{name} +{value:.0f}" for name, value in sorted(self.said.items())) or "nothing"
        on, beside = self.rates
        return (
            f"| {self.attack} | {' | '.join(rates)} | {sent['cores']:.2f} "
            f"| {said} | {on / (beside or 1):.2f} | {self.peak:+.0f} | {self.log / 1024:.0f} "
            f"| {'; '.join(self.findings) or 'holds'} |"
        )


HEAD = (
    "| attack | bytes/s | messages/s | cores | what the run counted "
    "| trained, of that beside a sink | MiB | KiB of logs | |\n"
    "|---|--:|--:|--:|---|--:|--:|--:|---|"
)


@dataclass
class Besieged:
    """A run in `folder` with `actors` honest ones and a place for the attackers."""

    folder: Path
    memory: Path
    data: dict[str, Any]
    actors: int
    keyed: bool = False
    """Whether it makes keys for itself."""
    workers: dict[str, runs.Worker] = field(default_factory=dict)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Until it makes steps, and then until it was told to end, and did."""
        data = {**self.data, "steps": 10**12, "actors": self.actors + 1, "monitor_period": 0.3}
        path = str(runs.write(data, self.folder))
        with ExitStack() as stack:

            def start(name: str, *command: str) -> None:
                self.workers[name] = stack.enter_context(runs.started(command, self.folder, name))

            bind = ["--run-dir", str(self.run_dir), "--bind", "127.0.0.1:0", *([] if self.keyed else ["--open"])]
            start("coordinator", "coordinator", path, *bind)
            runs.until(lambda: (self.run_dir / "coordinator.json").exists(), what="the coordinator is there")
            join = ["--coordinator", self.coordinator["address"], "--patience", "120", "--keys", self.keys]
            start("learner", "learner", *join)
            for number in range(self.actors):
                start(f"actor-{number}", "actor", *join, *(["--node", "far"] if number % 2 else []))
            runs.until(lambda: runs.agent_steps(self.folder) and self._places() == self.actors, what="the run is on")
            yield
            if self.ended():
                return  # what is left could only wait for it
            self.workers["coordinator"].popen.send_signal(signal.SIGINT)
            for worker in self.workers.values():
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(60)

    @property
    def run_dir(self) -> Path:
        """Its folder."""
        return self.folder / "run"

    @property
    def keys(self) -> str:
        """The folder of its keys; empty without."""
        return str(self.run_dir / "run-keys") if self.keyed else ""

    @property
    def coordinator(self) -> dict[str, Any]:
        """Where it is."""
        return dict(json.loads((self.run_dir / "coordinator.json").read_text()))

    def _places(self) -> int:
        with suppress(OSError, ValueError):
            members = json.loads((self.run_dir / "state.json").read_text())["members"]
            return sum(member["role"] == "actor" for member in members)
        return 0

    def ended(self) -> list[str]:
        """Those that have."""
        over = {name: worker for name, worker in self.workers.items() if worker.popen.poll() is not None}
        return [f"{name} ended with {worker.popen.poll()}: {worker.said[-200:]!r}" for name, worker in over.items()]

    def sizes(self) -> dict[str, int]:
        """Resident bytes of each process."""
        found = {}
        for name, worker in self.workers.items():
            with suppress(psutil.Error):
                found[name] = psutil.Process(worker.popen.pid).memory_info().rss
        return found

    def logs(self) -> int:
        """Bytes of them."""
        return sum(path.stat().st_size for path in [*self.run_dir.glob("logs/*"), *self.folder.glob("*.txt")])

    def counters(self) -> dict[str, float]:
        """What was refused, as the learner counts it and as `/metrics` of both servers tells it, and the lag of
        versions."""
        found = {name: value for name, value in self._page().items() if _REFUSED.search(name)}
        (learner,) = re.findall(r"event=http address=(\S+)", self.workers["learner"].said)
        for who, address in (("", self.coordinator["http"]), ("learner_", learner)):
            with suppress(OSError), urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
                for line in answer.read().decode().splitlines():
                    name, _, value = line.rpartition(" ")
                    if name.startswith(("rookery_refusals", "rookery_run_lag")):
                        found[who + name.removeprefix("rookery_")] = float(value)
        return found

    def trained(self) -> float:
        """Segments."""
        return sum(value for name, value in self._page().items() if name.startswith("trained."))

    def _page(self) -> dict[str, float]:
        """The learner's counters."""
        (path,) = self.run_dir.glob("counters/learner*")
        return read_counters(path)

    def healthy(self) -> bool:
        """Whether a probe is answered in a second."""
        with suppress(OSError), urllib.request.urlopen(self.coordinator["http"] + "/healthz", timeout=1) as answer:
            return bool(answer.status == 200)
        return False


class Member:
    """The attackers' own place in a run: joins, heartbeats and leaves as the specification says, and hears what becomes
    of its segments, and of its victim's."""

    def __init__(self, context: zmq.Context[Any], besieged: Besieged) -> None:
        self._socket = connect(context, zmq.DEALER, besieged.coordinator["address"], server="coordinator")
        self.token = secrets.token_hex(8)
        who = {"role": "actor", "name": "", "token": self.token, "release": "0", "host": "here", "pid": 1}
        self.welcome: dict[str, Any] = {}
        while not self.welcome:
            self._say("join", **who)
            if self._socket.poll(1000):
                answer = msgpack.unpackb(self._socket.recv())
                self.welcome = answer if answer["type"] == "welcome" else {}
        self.status: dict[str, Any] = {}
        runs.until(lambda: self.beat().get("routes"), what="there is a route")
        self.target = self._target(besieged)
        self.told = dict.fromkeys((self.target.name, self.target.victim), (0, ""))
        """Actor -> how many of its messages were refused, and why the newest was, in its acknowledgements."""
        self.number = 1
        """Its newest segment that was acknowledged."""
        self._acks = connect(context, zmq.SUB, self.target.acknowledgements)
        for actor, incarnation in ((self.target.name, self.target.incarnation), (self.target.victim, 1)):
            self._acks.setsockopt(zmq.SUBSCRIBE, ack_topic(self.target.policy, actor, incarnation))

    def beat(self) -> dict[str, Any]:
        """One heartbeat; the newest `status`."""
        self._tell("heartbeat", state="acting")
        while self._socket.poll(100):
            answer = msgpack.unpackb(self._socket.recv())
            self.status = answer if answer["type"] == "status" else self.status
        return self.status

    def misled(self, attack: str) -> list[str]:
        """Where it is not told why it was refused, or its victim is told of what others sent in its name."""
        wanted = {kind for one in attack.split() for kind in REASONS.get(one, ())}
        end = time.monotonic() + _TOLD_WITHIN
        while wanted.isdisjoint(self.hear()) and wanted and time.monotonic() < end:
            self.beat()
        refused, reason = self.told[self.target.victim]
        found = [f"{self.target.victim} is told that {refused} of its own were refused: {reason}"] if refused else []
        return found + ([f"its sender is told {self.hear()}"] if wanted and wanted.isdisjoint(self.hear()) else [])

    def hear(self) -> list[str]:
        """The kind of the newest refusal of its own, as far as it has heard."""
        while self._acks.poll(0):
            ack = msgpack.unpackb(self._acks.recv_multipart()[1])
            self.told[ack["actor"]] = ack["refused"], ack["reason"]
            if ack["actor"] == self.target.name:
                self.number = max(self.number, ack["acknowledged"])
        return kinds_in(self.told[self.target.name][1])

    def leave(self) -> None:
        """It ends."""
        self._tell("leave")
        self._socket.poll(1000)

    def _tell(self, kind: str, **fields: Any) -> None:
        who = {"name": self.welcome["name"], "token": self.token, "incarnation": self.welcome["incarnation"]}
        self._say(kind, **who, **fields)

    def _say(self, kind: str, **fields: Any) -> None:
        self._socket.send(msgpack.packb({"type": kind, "schema_number": 2, **fields}))

    def _target(self, besieged: Besieged) -> Target:
        """What attackers know."""
        specs = self.welcome["specs"][0]
        route = next(route for route in self.status["routes"] if route["policy"] == specs["policy"])
        return Target(
            control=besieged.coordinator["address"],
            experience=route["experience"],
            weights=route["weights"],
            acknowledgements=route["acknowledgements"],
            http=besieged.coordinator["http"],
            simulators=next(iter(addresses_of(besieged.run_dir)), ""),
            run=self.welcome["run"],
            policy=specs["policy"],
            layout=specs["layout"],
            memory=str(besieged.memory),
            keys=besieged.keys,
            name=self.welcome["name"],
            incarnation=self.welcome["incarnation"],
            token=self.token,
            proof=self.welcome["proof"],
            victim="actor-0" if self.welcome["name"] != "actor-0" else "actor-1",
        )


def _sink(listener: socket.socket) -> None:
    """Reads and drops whatever comes over any connection."""
    os.nice(19)
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    ready.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                one = key.fileobj
                assert isinstance(one, socket.socket)
                with suppress(OSError):
                    if one.recv(1 << 20):
                        continue
                ready.unregister(one)
                one.close()


@contextmanager
def _sinking() -> Iterator[str]:
    """A sink's HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        process = Process(target=_sink, args=(listener,), daemon=True)
        process.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        process.kill()
        process.join()


def _attack(name: str, target: Target, watch: Callable[[], object]) -> dict[str, float]:
    """To its end; `watch` is called meanwhile."""
    command = [sys.executable, "-m", "tests.chaos.attacks", *name.split()]
    with subprocess.Popen(
        command, env=runs.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdin.write(target.text())
        popen.stdin.close()
        end = time.monotonic() + target.seconds + 30
        while popen.poll() is None:
            watch()
            time.sleep(0.1)
            if time.monotonic() > end:
                popen.kill()
        return dict(json.loads(popen.stdout.read() or "{}"))


def besiege(
    besieged: Besieged, attacks: Sequence[str], seconds: float, say: Callable[[str], None], compare: bool = True
) -> list[str]:
    """Each attack (or several in turn: names with a space between) for so long, on the run and, to `compare`, on a
    sink; what did not hold, but for what the summary shows."""
    with _sinking() as sink, ExitStack() as stack:
        context = open_context(besieged.keys, "actor")
        stack.callback(context.destroy, linger=0)
        member = Member(context, besieged)
        target = replace(member.target, seconds=seconds)
        door = f"tcp://{sink}"
        beside = replace(target, control=door, experience=door, weights=door, acknowledgements=door, http=door)
        besieged.counters()  # what a server imports when /metrics is first asked for is no attacker's doing
        warm, peak, silent = besieged.sizes(), Counter[str](), Counter[str]()
        beaten = time.monotonic()

        def watch() -> None:
            nonlocal beaten
            if time.monotonic() > beaten + 1:
                beaten = time.monotonic()
                member.beat()
                silent["healthz"] += not besieged.healthy()
            for who, size in besieged.sizes().items():
                peak[who] = max(peak[who], size)

        say(HEAD)
        findings, rates = list[str](), [0.0, 0.0]
        for name in attacks:
            before, log, sizes = besieged.counters(), besieged.logs(), besieged.sizes()
            peak.clear()
            silent.clear()
            member.hear()
            now = replace(target, number=member.number)
            on = _rate(besieged, lambda: _attack(name, now, watch))  # noqa: B023
            found = besieged.ended()
            found += ["a probe of /healthz was not answered"] if silent["healthz"] > 1 else []
            found += [] if found else member.misled(name)
            after, grown = besieged.counters(), besieged.logs() - log
            most = max((peak[who] - sizes[who] for who in sizes), default=0) / _MIB
            same = replace(beside, rate=on[1].get("messages", 0) / seconds)
            off = _rate(besieged, lambda: _attack(name, same, watch)) if compare else on  # noqa: B023
            rates = [rates[0] + on[0], rates[1] + off[0]]
            said = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
            said = {key: value for key, value in said.items() if not key.startswith("run_lag")}
            found += [
                f"{key} is {value:.3g}" for key, value in after.items() if key.startswith("run_lag") and value < 0
            ]
            found += ["more than a megabyte of logs"] if grown > _MIB else []
            wanted = (_UNKNOWN, f"learner_{_UNKNOWN}") if "wrong_keys" in name.split() else ()
            found += [f"{key} is not counted" for key in wanted if key not in said]
            say(Phase(name, on[1], said, (on[0], off[0]), most, grown, found).row())
            findings += [f"{name}: {one}" for one in found]
            if besieged.ended():
                return findings
        for who, size in besieged.sizes().items() if seconds >= _WHOLE else ():
            say(f"{who}: {warm[who] / _MIB:.0f} MiB, at last {size / _MIB:.0f} MiB")
            if size > 1.1 * warm[who]:
                findings.append(f"{who} grew from {warm[who] / _MIB:.0f} to {size / _MIB:.0f} MiB")
        say(f"trained on a second, of what was beside a sink: {rates[0] / (rates[1] or 1):.3f}")
        if seconds >= _WHOLE and rates[0] < 0.9 * rates[1]:
            findings.append(f"training took in {rates[0] / rates[1]:.2f} of what it did beside a sink")
        member.leave()
    return findings


def _rate(besieged: Besieged, work: Callable[[], dict[str, float]]) -> tuple[float, dict[str, float]]:
    before, began = besieged.trained(), time.monotonic()
    sent = work()
    return (besieged.trained() - before) / (time.monotonic() - began), sent


def audit(besieged: Besieged) -> list[str]:
    """Of the run's end."""
    path = besieged.run_dir / "summary.json"
    found = audit_books(json.loads(path.read_text()), None) if path.exists() else ["there is no summary"]
    codes = {name: worker.popen.poll() for name, worker in besieged.workers.items()}
    wrong = {name: code for name, code in codes.items() if code != (9 if name == "coordinator" else 0)}
    found += [f"{name} ended with {code}: {besieged.workers[name].said[-300:]!r}" for name, code in wrong.items()]
    return found + [f"shared memory left: {path.name}" for path in besieged.memory.iterdir()]


@click.command(help="Attacks a run, and says who was harmed.")
@click.option("--minutes", default=30.0, show_default=True, help="Of all attacks together, half of it on a sink.")
@click.option("--actors", default=8, show_default=True, help="Honest ones.")
@click.option("--world", default="cartpole", show_default=True, help="Or `served`: simulators that actors start.")
@click.option("--attack", "attacks", multiple=True, help="Only these; may be repeated.")
@click.option("--keys", "keyed", is_flag=True, help="A run that has keys, and strangers alone.")
@click.option("--warm-up", default=30.0, show_default=True, help="Seconds before memory is looked at.")
@click.option("--keep", type=click.Path(path_type=Path), default=None, help="A folder for the run; kept.")
def main(
    minutes: float,
    actors: int,
    world: str,
    attacks: tuple[str, ...],
    keyed: bool,
    warm_up: float,
    keep: Path | None,
) -> None:
    """Prints the table and what does not hold."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers are ended in any case
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        os.environ["ROOKERY_MEMORY"] = memory
        folder = keep or Path(name)
        folder.mkdir(exist_ok=True)
        besieged = Besieged(folder, Path(memory), SIMULATORS if world == "served" else WORLDS[world][0], actors, keyed)
        left_out = {*(() if world == "served" else SERVED), *(MEMBERS if keyed else KEYED)}
        chosen = attacks or tuple(name for name in ATTACKS if name not in left_out)
        with besieged.started():
            time.sleep(warm_up)
            found = besiege(besieged, chosen, 60 * minutes / (2 * len(chosen)), click.echo)
        found += audit(besieged)
    click.echo("\n".join([f"findings: {len(found)}", *(f"- {one}" for one in found)]))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
