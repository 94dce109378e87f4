"""What the coordinator takes by the number of its members, and how soon it answers them.

    python -m tests.benchmarks.bench_coordinator [--members 100,300,1000] [--seconds 20] [--pages] [--profile FILE]

A coordinator of treasure-hunt beside one learner and so many actors, which are a socket each and no more: heartbeats as
often as they are told to, with the counters of a real one, as from other machines, or with `--pages` from this one,
where the run's folder holds their counters. One JSON object each: processor seconds a minute of the coordinator, while
all joined and afterwards, milliseconds from a heartbeat to its answer, and seconds until all were let in again that
asked at once after its death (SIGKILL), from the start of its successor on. With `--profile`, what it spends its time
with.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zmq

from protocol.memory.shared_file import Counters
from protocol.messages.codec import decode, encode
from protocol.messages.core import Heartbeat, Join, Message, Route, Welcome
from protocol.transport.sockets import connect
from tests.flows import runs
from workers.rollout.report import ActorReport

_POLICIES = ("agent_0", "agent_1")
_PATIENCE = 600.0

__all__ = ["measured"]


def main() -> None:
    """Prints one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", default="100,300,1000")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--profile", default="")
    given = parser.parse_args()
    for count in map(int, given.members.split(",")):
        with tempfile.TemporaryDirectory(prefix="rookery-coordinator-") as name:
            found = measured(Path(name), count, given.seconds, given.pages, given.profile)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def measured(own: Path, count: int, seconds: float, pages: bool = False, profile: str = "") -> dict[str, Any]:
    """Of a coordinator with `count` actors."""
    config = {"actors": count, "num_learner_processes": 1, "transport": "tcp", "steps": 10**12, "actor_timeout": 60}
    where = [str(runs.write(config, own)), "--run-dir", str(own / "run"), "--resident", "--bind"]
    role = ["-m", "cProfile", "-o", profile, "-m", "workers.coordinator"] if profile else ["-m", "workers.coordinator"]
    command, context = [runs.PYTHON, *role, *where], zmq.Context(1)
    context.set(zmq.MAX_SOCKETS, 2 * count + 100)
    with ExitStack() as stack:
        stack.callback(context.destroy, linger=0)
        with _up([*command, "127.0.0.1:0"], own, profile) as (process, address):
            herd = _Herd(context, address, own / "run" if pages else None)
            began, joining = time.monotonic(), _spent(process)
            herd.join(count)
            joined = {"joining_seconds": time.monotonic() - began, "joining_cpu_s": _spent(process) - joining}
            herd.beat(3.0)
            before, start = _spent(process), time.monotonic()
            answers = herd.beat(seconds)
            spent = (_spent(process) - before) / (time.monotonic() - start) * 60
            rss = process.memory_info().rss / 2**20
        began = time.monotonic()
        with _up([*command, address.removeprefix("tcp://")], own):
            herd.rejoin()
            joined["rejoining_seconds"] = time.monotonic() - began
    late = {f"answer_ms_p{q}": round(float(np.percentile(answers, q)) * 1e3, 2) for q in (50, 99)}
    figures = {"cpu_s_per_minute": spent, **joined, "rss_mib": rss}
    return {"members": count, "pages": pages, **{k: round(v, 2) for k, v in figures.items()}, **late,
            "answers": len(answers), "answer_bytes": herd.answer_bytes}  # fmt: skip


@contextmanager
def _up(command: list[str], own: Path, profile: str = "") -> Iterator[tuple[psutil.Process, str]]:
    """A coordinator's process and address; it is killed at the end, or asked to end if it has a `profile` to write."""
    told = own / "run" / "coordinator.json"
    told.unlink(missing_ok=True)
    with runs.started(command, own, "coordinator") as worker:
        runs.until(told.exists, _PATIENCE, "the coordinator is up")
        yield psutil.Process(worker.popen.pid), json.loads(told.read_text())["address"]
        if profile:
            runs.kill(worker.popen.pid, signal.SIGTERM)
            worker.wait(_PATIENCE)


def _spent(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


class _Herd:
    """A socket a member, the learner first."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, folder: Path | None) -> None:
        self._context, self._address, self._folder = context, address, folder
        self._sockets: list[zmq.Socket[bytes]] = []
        self._welcomes: list[Welcome] = []
        self._pages: list[Counters] = []
        self._poller = zmq.Poller()
        self.answer_bytes = 0

    def join(self, count: int) -> None:
        for number in range(count + 1):
            socket = connect(self._context, zmq.DEALER, self._address, server="coordinator")
            self._sockets.append(socket)
            self._poller.register(socket, zmq.POLLIN)
            socket.send(encode(_introduction(number)))
            if number % 50 == 49 or number == count:
                self._take_welcomes()

    def rejoin(self) -> None:
        """Each asks as who it was, and all at once, until all have been let in."""
        for number, (socket, welcome) in enumerate(zip(self._sockets, self._welcomes, strict=True)):
            known = {"name": welcome.name, "incarnation": welcome.incarnation}
            socket.send(encode(_introduction(number).model_copy(update=known)))
        for socket in self._sockets:
            while not isinstance(_answer(socket), Welcome):
                pass

    def _take_welcomes(self) -> None:
        for number in range(len(self._welcomes), len(self._sockets)):
            socket = self._sockets[number]
            welcome = _answer(socket)
            assert isinstance(welcome, Welcome), welcome
            self._welcomes.append(welcome)
            path = None if self._folder is None else self._folder / "counters" / f"{welcome.name}.{welcome.incarnation}"
            self._pages.append(Counters(path, *ActorReport.names(_POLICIES)))

    def beat(self, seconds: float) -> list[float]:
        """Heartbeats of each as often as it was told to, evenly; seconds to each answer."""
        many, start = len(self._sockets), time.monotonic()
        rate = many / self._welcomes[-1].heartbeat
        number, took, sent = 0, [], dict.fromkeys(self._sockets, 0.0)
        while (now := time.monotonic()) < start + seconds:
            while start + number / rate <= now:
                at = number % many
                socket = self._sockets[at]
                sent[socket] = sent[socket] or time.monotonic()
                socket.send(encode(self._heartbeat(at)))
                number += 1
            for socket, _ in self._poller.poll(max(0, int(1000 * (start + number / rate - time.monotonic())))):
                answer = socket.recv()
                self.answer_bytes = len(answer)
                if sent[socket]:
                    took.append(time.monotonic() - sent[socket])
                    sent[socket] = 0.0
        return took

    def _heartbeat(self, at: int) -> Message:
        welcome, page = self._welcomes[at], self._pages[at]
        if at:
            page.add("agent_steps", 64)
            page.add("env_steps", 32)
        return Heartbeat(
            name=welcome.name,
            token=_introduction(at).token,
            incarnation=welcome.incarnation,
            state="acting" if at else "learning",
            routes=[] if at else [_route(policy) for policy in _POLICIES],
            counters=page.snapshot(),
            metrics={f"adoption_lag.{policy}": 1.0 for policy in _POLICIES} if at else {},
            episodes=[(policy, int(page["agent_steps"]), 2, 1.5, 8) for policy in _POLICIES] if at else [],
        )


def _answer(socket: zmq.Socket[bytes]) -> Message:
    assert socket.poll(int(_PATIENCE * 1000))
    return decode(socket.recv_multipart())[0]


def _introduction(number: int) -> Join:
    return Join(
        role="actor" if number else "learner",
        token=f"token-{number}",
        release="0",
        host="elsewhere",
        pid=number,
        node=f"node-{number}",
    )


def _route(policy: str) -> Route:
    address = "tcp://127.0.0.1:5601"
    return Route(policy=policy, learner="learner-0", incarnation=1, experience=address, weights=address,
                 acknowledgements=address)  # fmt: skip


if __name__ == "__main__":
    main()
