"""How far a segment travels from the step of a world to the loss, and weights from an update to the turn that acts by
them: the calls and files that a reader has to follow.

A real actor and a real learner in one process, with their sockets and shared memory, are traced call by call. Where the
data turn up in the next place (columns of a ring, a socket, a batch, the module that acts), every call of ours that is
on the stack then, from the role's loop down, has passed them on.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import zmq

from protocol.config.run import parse_run
from protocol.experience.proof import proof_of
from protocol.experience.ring_buffer import FINISHED
from protocol.memory.shared_file import sweep
from protocol.messages.core import Status, Welcome
from tests.tools import ROOT
from workers.actor import Actor
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.learner import Learner
from workers.planning.auxiliary_plan import plan_learners
from workers.runtime.process import Options, WorkerProcess

MOST = {"segment": (20, 13), "weights": (7, 6)}
"""Calls, and files. They only fall: until 16 in 12, and 8 in 6."""
NAME = "diver"
RUN: dict[str, Any] = {
    "environment": {"id": "deep_sea", "copies": 1},
    "policy": {
        "algorithm": {"name": "ppo", "epochs": 1, "minibatches": 1},
        "segment_length": 4,
        "credits": 4,
        "network": {"hidden": [4]},
    },
    "steps": 1_000_000,
    "transport": "memory",
    "device": "cpu",
}
WORLDS = f"{ROOT}/workers/environments/worlds/"
TORCH = str(Path(torch.nn.modules.module.__file__))

Call = tuple[CodeType, CodeType]
Place = Callable[[FrameType, str, Any], FrameType | None]
"""Whether the data have turned up there, at an event of `sys.setprofile`: the frame that brought them."""


class Trace:
    """The calls that led to each of `places`, to which data come one after the other, in a thread that is traced."""

    def __init__(self, places: dict[str, Place]) -> None:
        self._places = [*places.items()]
        self.calls: dict[str, list[Call]] = {}
        self.ended = Event()

    def start(self, body: Callable[[], None]) -> threading.Thread:
        """Runs `body` in a thread, traced until the data are in the last place."""

        def work() -> None:
            sys.setprofile(self._look)
            body()

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def _look(self, frame: FrameType, event: str, value: Any) -> None:
        while self._places and (found := self._places[0][1](frame, event, value)) is not None:
            stack = [*ours(found)]
            self.calls[self._places.pop(0)[0]] = [*zip(stack[1:], stack, strict=False)][::-1]
        if not self._places:
            sys.setprofile(None)
            self.ended.set()


def ours(frame: FrameType | None) -> Iterator[CodeType]:
    """The functions of actor and learner on the stack, innermost first; a world is its user's."""
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        inside = code.co_filename.startswith((f"{ROOT}/workers/", f"{ROOT}/protocol/"))
        if inside and not code.co_filename.startswith(WORLDS) and not code.co_name.endswith(("comp>", "expr>")):
            yield code


def held(test: Callable[[], object]) -> Place:
    """A place in memory: `test` tells whether the data are there."""
    return lambda frame, event, _: (frame.f_back if event == "call" else frame) if test() else None


def entered(file: str, name: str) -> Place:
    """A call of function `name` in a file whose path begins with `file`."""

    def look(frame: FrameType, event: str, _: Any) -> FrameType | None:
        code = frame.f_code
        return frame if event == "call" and code.co_filename.startswith(file) and code.co_name == name else None

    return look


def handed(record: list[bytes]) -> Place:
    """Who is the first to return with a message in hand that ends with `record`."""

    def look(frame: FrameType, event: str, _: Any) -> FrameType | None:
        if event != "return" or not record:
            return None
        last = [some[-1] for some in frame.f_locals.values() if isinstance(some, list) and some]
        return (
            frame if any(x.bytes == record[0] if isinstance(x, zmq.Frame) else x == record[0] for x in last) else None
        )

    return look


class Pair:
    """An actor and a learner of one policy."""

    def __init__(self) -> None:
        run = parse_run(RUN)
        environment = CheckedEnvironment(make(run.environment))
        world = environment.world
        self.lives = [self._life(role) for role in ("actor", "learner")]
        given: dict[str, Any] = {
            "run": "r",
            "incarnation": 1,
            "config": run.model_dump_json(),
            "world": world.model_dump_json(),
        }
        given |= {"policies": [NAME], "quota": run.end, "lease": 10.0, "heartbeat": 1.0}
        proof = proof_of("secret", "r", "actor-0", 1)
        self.actor = Actor(self.lives[0], Welcome(name="actor-0", proof=proof, **given), environment, run)
        welcome = Welcome(name="learner-0", secret="secret", **given)
        self.learner = Learner(self.lives[1], welcome, run, plan_learners(run, world), world)

    def tell(self, command: Literal["go", "stop"]) -> None:
        """The coordinator's word."""
        for life in self.lives:
            status = Status(command=command, routes=self.learner._report.routes, actors=[("actor-0", 1)])
            vars(life.client).update(command=command, status=status)

    @staticmethod
    def _life(role: str) -> WorkerProcess:
        life = WorkerProcess(role, Options("tcp://127.0.0.1:1", "", "127.0.0.1:0", "", False, 1.0))
        client: Any = SimpleNamespace(command="go", status=None, orphaned=False, changed=Event(), start=lambda _: None)
        life.client = client
        return life


@pytest.fixture(scope="module")
def calls() -> Iterator[dict[str, list[Call]]]:
    """By place, what led there: of the first segment, and of the first weights after an update."""
    pair = Pair()
    actor, learner = pair.actor, pair.learner
    sender, performer = actor._transport.senders[NAME], actor._performers[NAME]
    ring = sender.ring
    record: list[bytes] = []

    def whole() -> bool:
        if ring.table["state"][0] == FINISHED and not record:
            record.append(ring.table[:1].tobytes())
        return bool(record)

    def member() -> Any:
        return learner._members[0]

    initial = performer.spare.copy()
    acting = Trace(
        {
            "step": entered(WORLDS, "step"),
            "observation": held(lambda: ring.columns["observation"][0, 1].sum() == 1),
            "reward": held(lambda: ring.columns["reward"][0, 1] <= 0),
            "whole": held(whole),
            "sent": handed(record),
            "copied": held(lambda: performer.version.version == 1 and (performer.spare != initial).any()),
            "adopted": held(lambda: performer.version.version > 1),
        }
    )
    learning = Trace(
        {
            "received": handed(record),
            "arrived": held(lambda: learner._receiver.arrivals(NAME)),
            "batch": held(lambda: member()._buffer._arrays["observation"][0, 1].any()),
            "loss": entered(TORCH, "_wrapped_call_impl"),
            "published": held(lambda: learner._publisher._policies[NAME].mailbox.version.version > 1),
        }
    )
    threads = [learning.start(learner.run)]
    try:
        while not learner._report.routes:
            threads[0].join(0.01)
        pair.tell("go")
        threads.append(acting.start(actor.run))
        for trace in (acting, learning):
            assert trace.ended.wait(60), (acting.calls.keys(), learning.calls.keys())
        pair.tell("stop")
        for thread in threads:
            thread.join()
        yield acting.calls | learning.calls
    finally:
        pair.tell("stop")
        for thread in threads:
            thread.join()
        actor.close()
        learner.close()
        for life in pair.lives:
            life.context.destroy(linger=0)
        sweep("r")


def told(what: str) -> set[str]:
    """The functions that the guide says data pass through."""
    text = (ROOT / "workers" / "README.md").read_text(encoding="utf-8")
    way = text.split(f"### The way of {'a segment' if what == 'segment' else what}\n")[1].split("\n#")[0]
    return set(re.findall(r"^\|[^|]*\| `([\w.]+)` \|", way, re.MULTILINE))


@pytest.mark.parametrize(
    ("what", "places"),
    [
        ("segment", ("step", "observation", "reward", "whole", "sent", "received", "arrived", "batch", "loss")),
        ("weights", ("published", "copied", "adopted")),
    ],
)
def test_what_passes_data_on_is_read_in_few_calls_and_files(
    what: str, places: tuple[str, ...], calls: dict[str, list[Call]]
) -> None:
    found = dict.fromkeys(call for place in places for call in calls[place])
    files = {code.co_filename for call in found for code in call}
    way = "\n".join(f"{one.co_qualname} -> {other.co_qualname}" for one, other in found)
    assert {code.co_qualname for call in found for code in call} == told(what), way
    assert len(found) <= MOST[what][0], f"calls:\n{way}"
    assert len(files) <= MOST[what][1], f"files:\n{way}"
