"""The conformance kit lets pass what holds to the specification, and says what is wrong with the rest, and where it is
written."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from protocol.conformance import Finding, actor_checks, check_server, check_simulator, simulator_checks
from protocol.errors import RookeryError, Timeout
from protocol.messages.codec import decode, encode
from protocol.messages.simulator import Observe, Pong
from protocol.simulator.client import EpisodeCut, RunOver, Simulator, SimulatorFault
from protocol.simulator.connection import Line
from protocol.simulator.session import Session
from protocol.spaces import Action, Agent, Box, Dict, Discrete, MultiDiscrete, World
from protocol.transport.curve import CurveContext, Keys, new_keys
from protocol.transport.sockets import Ports
from tests.faults import kinds_in, raises
from tests.tools import ROOT
from tests.workers.environments.simulators.serving import WALK, serving
from workers.environments.simulators import server
from workers.environments.simulators.message_validation import MessageValidator
from workers.environments.simulators.session import IdentityTable

HEADINGS = set(re.findall(r"^#+ (.+)$", (ROOT / "protocol" / "README.md").read_text(), re.MULTILINE))
HALL = World(
    id="hall",
    agents=(
        Agent(
            name="guard",
            observation=Dict(spaces={"sight": Box(shape=(3,), low=-1.0, high=1.0), "post": Discrete(n=3, start=1)}),
            action=Action(space=Dict(spaces={"go": MultiDiscrete(nvec=(2, 3)), "arm": Box(shape=(2,))}), atomic=False),
            action_mask=True,
        ),
        Agent(name="thief", observation=Box(shape=(2,), dtype="uint8"), action=Discrete(n=4)),
    ),
)


MAZE = World(
    id="maze",
    agents=(
        Agent(name="guard", observation=Box(shape=(2,)), action=Discrete(n=4, start=3, dtype="int8"), action_mask=True),
    ),
)


def idle(present: Any) -> Any:
    """The first choices that are legal, and zeros."""
    world = HALL if present.action_mask is not None or present.agent else WALK
    actions = world.places[present.agent].acted.zeros(len(present.observation))
    if present.action_mask is not None:
        masks = present.action_mask["go"]
        actions["go"][:, 0], actions["go"][:, 1] = masks[:, :2].argmax(-1), masks[:, 2:].argmax(-1)
    return actions


def is_said(finding: Finding) -> None:
    """It is one sentence and names a place that there is."""
    heading, _, rule = finding.section.partition(", ")
    assert heading in HEADINGS, finding
    assert not rule or 1 <= int(rule) <= 9
    assert finding.section in str(finding)
    assert finding.flaw in str(finding)


@pytest.mark.parametrize("world", [WALK, HALL], ids=["one agent", "nested spaces and masks"])
def test_an_actor_holds_to_all_that_is_checked_I8(world: World) -> None:
    """I8."""
    with serving(world, policy=idle) as served:
        findings = [*check_server(served.address)]
    assert [finding.holds for finding in findings if finding.good] == [finding.holds for finding in findings], findings
    assert len(findings) == len(actor_checks.CHECKS)


def test_an_actor_that_knows_other_keys_is_one_fault_and_not_one_of_each_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROOKERY_KEYS", raising=False)
    new_keys(tmp_path / "keys")
    context = CurveContext.make(Keys.load(tmp_path / "keys", "actor"))
    ports = Ports(context, "127.0.0.1", 0, names={0: "simulators"})
    try:
        address = ports.bind({0: zmq.ROUTER})[0]
        with raises(Timeout, "keys_not_accepted", peer=address):
            next(check_server(address, patience=0.5))
    finally:
        ports.close()
        context.destroy(linger=0)


def test_an_actor_that_does_what_a_mask_forbids_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(self: Any, guest: Any, number: int, episode: int, waited: float, arrays: Any) -> bool:
        return GIVE(self, guest, number, episode, waited, [bytes(len(array)) for array in arrays])

    monkeypatch.setattr(server.SimulatorServer, "give", zeros)
    monkeypatch.setattr(actor_checks, "CHECKS", (actor_checks.plays,))
    with serving(HALL, policy=idle) as served:
        (finding,) = check_server(served.address, patience=20.0)
    assert kinds_in(finding.flaw) == ["action_not_legal"]
    assert finding.section == "The conversation, 3"
    is_said(finding)


def rewards(self: Any, message: Any, rows: Any) -> list[float]:
    """Of the first ones, however many there are."""
    return (message.rewards or [0.0] * len(rows))[: len(rows)]


def give(self: server.SimulatorServer, guest: Any, number: int, *more: Any) -> bool:
    """To another observe."""
    return GIVE(self, guest, number + 1, *more)


def blame(self: server.SimulatorServer, guest: Any, fault: Any) -> None:
    """Always for the same."""
    fault.code = "value"
    BLAME(self, guest, fault)


def pong(**fields: Any) -> Pong:
    """With a clock of its own."""
    return Pong(**{**fields, "clock": 7.0})


SERVER = server.SimulatorServer
BLAME, GIVE = SERVER.report_fault, SERVER.give
BROKEN_SERVERS: dict[str, tuple[Any, str, Any, Any, str, str]] = {
    "answers another": (SERVER, "give", give, actor_checks.plays, "act_answers_other_observe", " 2 "),
    "loses the clock": (server, "Pong", pong, actor_checks.pings, "pong_clock_wrong", "7.0"),
    "gives": (MessageValidator, "_rewards", rewards, actor_checks.refuses, "answer_of_wrong_type", "a reward too many"),
    "has one code": (SERVER, "report_fault", blame, actor_checks.refuses, "refusal_code_wrong", "value ("),
    "is patient": (server, "STRIKES", 30, actor_checks.quarantine, "repeated_fault_fatality_wrong", "20 "),
    "counts none": (
        IdentityTable,
        "incarnation_of",
        lambda *_: 1,
        actor_checks.identity,
        "incarnation_not_rising",
        "1",
    ),
}


@pytest.mark.parametrize("case", BROKEN_SERVERS)
def test_a_server_that_breaks_a_rule_is_told_which(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken, check, kind, fact = BROKEN_SERVERS[case]
    monkeypatch.setattr(where, name, broken)
    monkeypatch.setattr(actor_checks, "CHECKS", (check,))
    with serving(copies=2) as served:
        (finding,) = check_server(served.address, patience=20.0)
    assert kinds_in(finding.flaw)[-1] == kind
    assert fact in finding.flaw
    is_said(finding)


def play(address: str, drives: bool, failed: list[Exception]) -> None:
    """Short episodes, until it is over or refused."""
    try:
        with Simulator(address, "sim", drives=drives, patience=20.0) as sim:
            while True:
                try:
                    if not drives:
                        sim.begin()
                    for step in range(5):
                        sim.act([step, 0.0], 0.5 * bool(step))
                    sim.end_episode(1.0, truncated=True, observation=[5.0, 0.0])
                except EpisodeCut:
                    continue  # it is told when to begin again
    except RunOver:
        return
    except (SimulatorFault, RookeryError) as fault:
        failed.append(fault)


def findings_of(drives: bool = True) -> list[Finding]:
    """Of a simulator in a thread of this process."""
    failed: list[Exception] = []
    threads: list[threading.Thread] = []

    def begin(address: str) -> None:
        threads.append(threading.Thread(target=play, args=(address, drives, failed)))
        threads[0].start()

    findings = [*check_simulator("127.0.0.1", 0, WALK, begin, patience=10.0)]
    threads[0].join(60)
    assert not threads[0].is_alive()
    return findings


def changed(change: Callable[[Observe], dict[str, Any]]) -> Callable[..., list[bytes]]:
    """Session.observe, whose message is changed."""
    right = Session.observe

    def observe(self: Session, *given: Any) -> list[bytes]:
        header, arrays = right(self, *given)
        message, _ = decode([header])
        assert isinstance(message, Observe)
        return [encode(message.model_copy(update=change(message))), arrays]

    return observe


def wide_numbers(self: Session, *given: Any) -> list[bytes]:
    """In twice as many bytes."""
    header, arrays = RIGHT(self, *given)
    return [header, np.frombuffer(arrays, "<f4").astype("<f8").tobytes()]


def infinite(self: Session, *given: Any) -> list[bytes]:
    """Sees what is not finite."""
    header, _ = RIGHT(self, *given)
    return [header, np.array([np.inf, 0.0], "<f4").tobytes()]


def newcomer(self: Session) -> list[bytes]:
    """Another process each time."""
    self.admitted = None
    return [encode(self._hello.model_copy(update={"token": secrets.token_hex(8)}))]


def too_many(self: Session, *given: Any) -> list[bytes]:
    """Tells of more agents than there are."""
    header, *frames = END(self, *given)
    message, _ = decode([header, *frames])
    return [encode(message.model_copy(update={"infos": [{}, {}]})), *frames]


def silent(kind: bytes) -> Callable[..., None]:
    """Line.send that forgets messages of a type."""

    def send(self: Line, frames: list[bytes]) -> None:
        if kind not in frames[0]:
            SEND(self, frames)

    return send


RIGHT, END, SEND = Session.observe, Session.end, Line.send
OBSERVE, SPEAK = (Session, "observe"), (Line, "send")
RULE = "The conversation, "
BROKEN_SIMULATORS: dict[str, tuple[tuple[Any, str], Any, str, str, str]] = {
    "does not count": (OBSERVE, changed(lambda _: {"number": 1}), "observe_number_not_rising", "1", "`observe`"),
    "one episode": (OBSERVE, changed(lambda _: {"episode": 1}), "observe_of_wrong_episode", "1", RULE + "5"),
    "paid at once": (OBSERVE, changed(lambda _: {"rewards": [1.0]}), "reward_without_action", "'walker'", RULE + "4"),
    "nobody": (OBSERVE, changed(lambda _: {"agents": ["nobody"]}), "agent_unknown_to_world", "'nobody'", "`place`"),
    "other arrays": (OBSERVE, wide_numbers, "arrays_size_wrong", "16", "Simulators"),
    "not finite": (OBSERVE, infinite, "observation_invalid", "a number that is not finite", "Simulators"),
    "tells too much": ((Session, "end"), too_many, "infos_count_wrong", "2", "`end`"),
    "speaks no msgpack": (OBSERVE, lambda *_: [b"\xc1"], "message_undecodable", "FormatError", "Messages"),
    "never asks": (SPEAK, silent(b"ping"), "peer_silent", "while its observe was not answered", RULE + "8"),
    "leaves without a word": (SPEAK, silent(b"bye"), "peer_silent", "after it was told bye", RULE + "8"),
    "is somebody new": ((Session, "hello"), newcomer, "hello_changed", "", "`hello`"),
}


@pytest.mark.parametrize("drives", [True, False], ids=["drives", "is driven"])
def test_a_simulator_holds_to_all_that_is_checked_I8(drives: bool) -> None:
    """I8."""
    findings = findings_of(drives)
    assert len(findings) == 6
    assert all(finding.good for finding in findings), findings


@pytest.mark.parametrize(
    ("world", "seen", "mask", "element", "right"),
    [
        (MAZE, [0.0, 0.0], [False, False, True, False], "", 5),
        (HALL, {"sight": [0.0] * 3, "post": 1}, {"go": [False, True, False, False, True]}, "go", [1, 2]),
    ],
    ids=["a choice", "nested choices"],
)
def test_no_action_that_a_simulator_is_given_is_one_that_its_mask_forbids(
    world: World, seen: Any, mask: Any, element: str, right: Any
) -> None:
    done: list[Any] = []

    def guard(address: str) -> None:
        with suppress(RunOver), Simulator(address, "sim", patience=20.0) as sim:
            while True:
                for step in range(10):
                    elements = [element] if element and step % 2 else []
                    action = sim.act(seen, mask=mask, agent="guard", elements=elements)
                    done.append(np.asarray(action[element] if element else action).tolist())
                sim.end_all({"guard": 0.0})

    threads: list[threading.Thread] = []

    def begin(address: str) -> None:
        threads.append(threading.Thread(target=guard, args=(address,)))
        threads[0].start()

    findings = [*check_simulator("127.0.0.1", 0, world, begin, patience=10.0)]
    threads[0].join(60)
    assert all(finding.good for finding in findings), findings
    assert done == [right] * len(done)
    assert len(done) > 30


@pytest.mark.parametrize("case", BROKEN_SIMULATORS)
def test_a_simulator_that_breaks_a_rule_is_told_which(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, broken, kind, fact, section = BROKEN_SIMULATORS[case]
    monkeypatch.setattr(*where, broken)
    monkeypatch.setattr(simulator_checks, "_ALIVE", 3.0)
    *good, finding = findings_of()
    assert all(one.good for one in good), good
    assert kinds_in(finding.flaw) == [kind]
    assert fact in finding.flaw
    assert finding.section == section
    is_said(finding)
