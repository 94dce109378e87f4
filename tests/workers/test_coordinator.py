"""The coordinator: whom it lets in, how long what actors left behind stays, and its executable."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import msgpack
import pytest
import zmq

from protocol.config.run import parse_run
from protocol.control import server as control_server
from protocol.control.client import ControlClient
from protocol.control.heartbeat import MAX_REQUEST, Report
from protocol.control.server import ControlServer
from protocol.memory.shared_file import PREFIX, Counters
from protocol.messages.codec import decode, encode
from protocol.messages.core import Heartbeat, Leave, Message, Refusal, Role, Route, Status, Welcome
from protocol.refusal_log import RefusalLog
from protocol.transport.sockets import Ports, connect
from tests.faults import kinds_in
from tests.waiting import PATIENCE, until
from tests.workers.coordination.test_membership import join
from workers.coordination import departures
from workers.coordinator import Coordinator, _announce
from workers.environments.registry import describe
from workers.learning.report import LearnerReport
from workers.metrics import run_metrics
from workers.metrics.hooks.calls import ENDING, FAILED
from workers.metrics.run_metrics import RunMetrics
from workers.rollout.report import ActorReport
from workers.runtime.files import SafeWriter
from workers.runtime.http_server import HttpRequest

__all__ = []


def test_a_half_written_announcement_of_one_that_died_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".coordinator").write_text('{"addr')
    _announce(tmp_path, "tcp://127.0.0.1:5600", "http://127.0.0.1:5602")
    assert [path.name for path in tmp_path.iterdir()] == ["coordinator.json"]
    assert json.loads((tmp_path / "coordinator.json").read_text())["address"] == "tcp://127.0.0.1:5600"


@pytest.fixture
def server() -> SimpleNamespace:
    """Instead of sockets: what was answered, and whether peers are there to be answered."""
    answers: list[Message] = []

    def answer(peer: bytes, message: Message) -> bool:
        answers.append(message)
        return bool(made.there)

    made = SimpleNamespace(gone=set(), there=True, answers=answers, answer=answer, refusals=RefusalLog(), counts={})
    return made


@pytest.fixture
def coordinator(tmp_path: Path, server: Any) -> Iterator[Coordinator]:
    """Of a run of two policies that has just begun."""
    made = coordinator_of(tmp_path, server)
    yield made
    made.close()


def coordinator_of(
    folder: Path, server: Any, resident: bool = False, baselines: Any = None, hooked: Any = (), **keys: Any
) -> Coordinator:
    """Of such a run in `folder`."""
    folder.mkdir(exist_ok=True)
    run = parse_run({"environment": {"copies": 4}, "steps": 1_000, "num_learner_processes": 1, **keys})
    return Coordinator(run, describe(run.environment), folder, server, baselines or played(), resident, None, hooked)


def played() -> Any:
    """Baselines that nobody plays, and nobody waits for."""
    told = {"baselines": {}, "baselines_missing": "", "baselines_seconds": {}}
    calls = {"look": lambda: False, "run_ended": lambda _: None, "summary": lambda _: told, "close": lambda: None}
    return SimpleNamespace(left=0.0, found={}, **calls)


def names(coordinator: Coordinator) -> list[tuple[str, int]]:
    """(name, incarnation) of the members that it says there are."""
    return [(member.name, member.incarnation) for member in coordinator._members.members("actor")]


def test_who_died_before_it_could_be_told_is_not_let_in(coordinator: Coordinator, server: Any) -> None:
    """Those that asked and died while the coordinator had no processor take no place and no number."""
    server.there = False
    for number in range(3):
        coordinator._join(b"dead", join("actor", f"dead-{number}", host="elsewhere"))
        coordinator._commit()
    assert names(coordinator) == []
    server.there = True
    coordinator._join(b"living", join("actor", "living", host="elsewhere"))
    coordinator._commit()
    assert names(coordinator) == [("actor-0", 1)]
    server.there = False
    coordinator._join(b"living", join("actor", "living", host="elsewhere"))
    coordinator._commit()
    assert names(coordinator) == [("actor-0", 1)], "it was told once: its lease says when it has gone"


def test_refused_joins_make_a_short_log_and_are_counted(
    coordinator: Coordinator, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(3000):
        coordinator._join(b"stranger", join("actor", "t", name=f"stranger-{number}"))
        coordinator._commit()
    assert isinstance(server.answers[-1], Refusal)
    assert len("\n".join(caplog.messages)) < 60_000
    assert server.refusals.counters() == {"refusals.join_refused.identity_unknown": 3000}
    told = coordinator.metrics(HttpRequest("/metrics", {}, {}, b"", threading.Event())).body
    assert isinstance(told, bytes)
    assert b'rookery_refusals_total{event="join_refused",kind="identity_unknown"} 3000.0' in told


def test_a_worker_that_fails_again_and_again_is_told_once_with_its_traceback(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """Its newest ones are in the summary."""
    error = "Traceback (most recent call last):\n" + "  at line 1\n" * 5000 + "ValueError: no"
    for number in range(1, 40):
        coordinator._join(b"a", join("actor", f"a{number}", name="actor-0"))
        coordinator._commit()
        coordinator._leave(b"a", Leave(name="actor-0", token=f"a{number}", incarnation=number, error=error))
        coordinator._commit()
    assert len(coordinator._departures.errors) == 20
    lines = [line.partition(" ")[0] for line in caplog.messages]
    assert lines.count("event=worker_traceback") == 1
    assert lines.count("event=worker_failed") == 4
    assert len("".join(caplog.messages)) < 2 * len(error)


def test_of_one_that_is_known_to_be_gone_nothing_more_is_looked_at(coordinator: Coordinator, server: Any) -> None:
    server.gone.add(b"dead")
    coordinator._join(b"dead", join("actor", "dead", host="elsewhere"))
    coordinator._commit()
    assert server.answers == []


def test_what_an_actor_left_undelivered_stays_until_learners_have_been_there_for_a_while(
    coordinator: Coordinator, server: Any, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the learner comes back long after the actor has gone."""
    monkeypatch.setattr(departures, "_SALVAGE_SECONDS", 20.0)
    coordinator._join(b"a", join("actor", "a"))
    coordinator._commit()
    welcome = server.answers[-1]
    assert isinstance(welcome, Welcome)
    ring = memory_dir / f"{PREFIX}{welcome.run}-actor-0.1-agent_0.ring"
    ring.touch()
    farewell = Leave(name="actor-0", token="a", incarnation=1, counters={"backlog.agent_0": 0, "flight.agent_0": 4})
    coordinator._leave(b"a", farewell)
    coordinator._commit()
    now, members = time.monotonic(), coordinator._members

    def sweep(seconds: float) -> None:
        there = len(members.members("learner"))
        coordinator._departures.sweep(now + seconds, salvaging=there == members.learners_wanted)

    for seconds in (0, 100, 1000):
        sweep(seconds)
        assert ring.exists(), "no learner is there"
    coordinator._join(b"l", join("learner", "l"))
    coordinator._commit()
    sweep(1019)
    assert ring.exists()
    sweep(1021)
    assert not ring.exists()


def crowd(coordinator: Coordinator, server: Any, count: int) -> list[Heartbeat]:
    """A learner, and `count` actors, all of which have been heard; the next heartbeat of each."""
    found = []
    for number in range(count + 1):
        role: Role = "actor" if number else "learner"
        coordinator._join(str(number).encode(), join(role, str(number), host="elsewhere"))
        coordinator._commit()
        name, counters = server.answers[-1].name, {f"waits.{i}": 1.0 for i in range(20)}
        doors = {"experience": "e", "weights": "w", "acknowledgements": "a"}
        route = Route.model_validate({"policy": "agent_0", "learner": name, "incarnation": 1, **doors})
        routes = [] if number else [route]
        found.append(Heartbeat(name=name, token=str(number), incarnation=1, state="acting", routes=routes,
                               counters=counters))  # fmt: skip
        coordinator._heartbeat(str(number).encode(), found[-1])
    return found


def instructions(act: Callable[[], Any]) -> int:
    """Bytecode instructions that `act` takes: what it costs, whatever else the machine does."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def test_a_heartbeat_costs_no_more_the_more_members_there_are(tmp_path: Path, server: Any) -> None:
    """And is answered with what a role needs: only learners and relays are told which actors live."""
    costs = []
    for count in (10, 100):
        coordinator = coordinator_of(tmp_path / str(count), server, actors=count)
        learner, *actors = crowd(coordinator, server, count)
        costs.append(instructions(lambda c=coordinator, a=actors: c._heartbeat(b"1", a[0])))  # type: ignore[misc]
        assert server.answers[-1].actors == []
        assert server.answers[-1].routes == learner.routes
        coordinator._heartbeat(b"0", learner)
        assert len(server.answers[-1].actors) == count
        coordinator.close()
    assert costs[1] < 1.1 * costs[0]


def test_a_look_at_all_members_costs_as_much_as_there_are_members(tmp_path: Path, server: Any) -> None:
    costs = []
    for count in (20, 80):
        coordinator = coordinator_of(tmp_path / str(count), server, actors=count)
        crowd(coordinator, server, count)
        coordinator._observe()
        costs.append(instructions(coordinator._observe))
        coordinator.close()
    assert costs[1] < 4.4 * costs[0]


def test_pages_are_read_a_few_in_a_turn_and_all_before_they_are_looked_at(tmp_path: Path, server: Any) -> None:
    coordinator = coordinator_of(tmp_path, server, actors=3)
    for number in range(3):
        Counters(tmp_path / "counters" / f"actor-{number}.1", *ActorReport.names(["agent_0"])).set("agent_steps", 100)
    tally = coordinator._tally
    assert not tally.refresh(-1.0)
    assert tally.known("actor") == {}
    assert tally.refresh(60.0)
    assert {page["agent_steps"] for page in tally.known("actor").values()} == {100}
    assert len(tally.known("actor")) == 3
    coordinator.close()


def test_counters_are_not_read_for_each_turn(tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But twice a second, however often members ask."""
    coordinator, looks = coordinator_of(tmp_path, server, actors=4), list[str]()
    turns: list[list[tuple[bytes, Message]]] = [
        [(b"1", heartbeat)] for heartbeat in crowd(coordinator, server, 4) for _ in range(50)
    ]

    def requests(_milliseconds: int, _known: object) -> list[tuple[bytes, Message]]:
        if not turns:
            coordinator._stages.leave()
        return turns.pop() if turns else []

    server.requests = requests

    def paged(_books: RunMetrics, role: str) -> list[tuple[str, int]]:
        looks.append(role)
        return []

    monkeypatch.setattr(RunMetrics, "paged", paged)
    coordinator._observe_at = math.inf
    coordinator.serve()
    assert looks == []
    coordinator.close()


def test_a_join_reads_no_counters_but_those_of_the_place_it_takes(
    tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a thousand that come back at once take longer than their leases, and none ever stays."""
    coordinator, read = coordinator_of(tmp_path, server, actors=3), list[str]()
    for number in range(3):
        Counters(tmp_path / "counters" / f"actor-{number}.1", *ActorReport.names(["agent_0"]))

    def reading(path: str) -> dict[str, float]:
        read.append(Path(path).name)
        if not Path(path).exists():
            raise FileNotFoundError
        return {"agent_steps": 300.0}

    monkeypatch.setattr(run_metrics, "read_counters", reading)
    coordinator._join(b"1", join("actor", "t", name="actor-1"))
    coordinator._commit()
    assert set(read) == {"actor-1.1", "actor-1.2"}
    assert server.answers[-1].quota == 333 - 300
    coordinator.close()


def test_a_crowd_that_comes_at_once_is_kept_with_one_file_before_anybody_is_told(
    tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, written = coordinator_of(tmp_path, server, actors=50), list[int]()
    replace = SafeWriter.replace

    def replacing(writer: SafeWriter, path: Path, *rest: Any) -> bool:
        written.append(len(server.answers))
        return replace(writer, path, *rest)

    monkeypatch.setattr(SafeWriter, "replace", replacing)
    for number in range(50):
        coordinator._join(b"%d" % number, join("actor", f"t{number}", host="elsewhere"))
    coordinator._commit()
    assert [message.type for message in server.answers] == ["welcome"] * 50
    assert written == [0]
    kept = json.loads((tmp_path / "state.json").read_text())
    assert {member["token"] for member in kept["members"]} == {f"t{number}" for number in range(50)}
    coordinator._commit()
    coordinator._members.save_if_due()
    assert written == [0], "nothing is written again that is the same"
    coordinator.close()


def test_pages_that_cannot_be_are_left_out_of_the_books(tmp_path: Path, server: Any) -> None:
    """As what heartbeats tell; and one that is no page ends nobody."""
    coordinator = coordinator_of(tmp_path, server, actors=3)
    pages = [Counters(tmp_path / "counters" / f"actor-{n}.1", *ActorReport.names(["agent_0"])) for n in range(3)]
    for page in pages:
        page.set("agent_steps", 100)
    assert coordinator._tally.steps() == {(f"actor-{n}", 1): 100 for n in range(3)}
    pages[0].set("agent_steps", -(10**12))
    pages[1].set("agent_steps", 90)
    os.truncate(tmp_path / "counters" / "actor-2.1", 100)
    assert coordinator._tally.steps() == {(f"actor-{n}", 1): 100 for n in range(3)}
    assert set(server.refusals.counters()) == {
        f"refusals.claim_not_believed.{kind}" for kind in ("counter_impossible", "counter_fell", "counters_unreadable")
    }
    pages[0].set("agent_steps", 10**12)  # in less than a second
    assert coordinator._tally.steps()["actor-0", 1] == 100
    pages[0].set("agent_steps", 300)
    assert coordinator._tally.steps()["actor-0", 1] == 300
    coordinator.close()


class Recording(ControlServer):
    """Keeps what it answers, asked or unasked."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__(socket)
        self.said = list[Message]()

    def answer(self, peer: bytes, message: Message, *frames: bytes) -> bool:
        self.said.append(message)
        return super().answer(peer, message, *frames)


@contextmanager
def serving(
    folder: Path, port: int, resident: bool, baselines: Any = None
) -> Iterator[tuple[Coordinator, ControlClient, Recording]]:
    """A coordinator on a socket of its own, and its only actor, which tells it something once a minute."""
    context = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", port)
    address = ports.bind({0: zmq.ROUTER})[0]
    server = Recording(ports.sockets[0])
    slow = {"monitor_period": 60, "actor_timeout": 600, "learner_timeout": 600, "actors": 1}
    coordinator = coordinator_of(folder, server, resident, baselines, **slow)
    client = ControlClient(context, address, "actor")
    thread = threading.Thread(target=coordinator.serve)
    thread.start()
    try:
        client.join(60)
        client.start(lambda: Report("acting"))
        until(lambda: client.status)
        yield coordinator, client, server
    finally:
        coordinator.stop()
        thread.join(60)
        client.close()
        coordinator.close()
        ports.close()
        context.destroy(linger=0)


def test_the_summary_is_there_before_baselines_and_complete_with_them(tmp_path: Path, free_port_block: int) -> None:
    """A run that is told to end while they are played has lost nothing, and waits for them no longer."""
    played_so_far = {"baselines": {}, "baselines_missing": "not yet"}
    baselines = played()
    baselines.left, baselines.summary = PATIENCE, lambda _: dict(played_so_far)
    baselines.look = lambda: bool(played_so_far["baselines"])
    file = tmp_path / "summary.json"

    def missing() -> str:
        return str(json.loads(file.read_text())["baselines_missing"])

    with serving(tmp_path, free_port_block, resident=False, baselines=baselines) as (coordinator, client, _):
        learner = Counters(tmp_path / "counters" / "learner-0.1", *LearnerReport.names(["agent_0"]))
        learner.set("steps_made.agent_0", 1)
        coordinator.stop()
        until(lambda: client.command == "drain")
        client.leave()
        until(lambda: coordinator.view()["stage"] == "ended")
        coordinator._asked_to_stop.clear()
        coordinator._members.complete = True
        waiting = threading.Thread(target=coordinator.finish)
        waiting.start()
        until(file.exists)
        assert missing() == "not yet"
        played_so_far.update(baselines={"agent_0": {"random": 1.0}}, baselines_missing="")
        until(lambda: not missing())
        assert waiting.is_alive()
        baselines.look = lambda: False
        played_so_far["baselines_missing"] = "stopped"
        coordinator.stop()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        assert (missing(), json.loads(file.read_text())["complete"]) == ("stopped", True)


def test_a_coordinator_that_leaves_a_run_which_goes_on_tells_nobody_to_end(
    tmp_path: Path, free_port_block: int
) -> None:
    """As one that stays resident does when its pod is moved."""
    with serving(tmp_path, free_port_block, resident=True) as (coordinator, _, server):
        coordinator.stop()
        until(lambda: coordinator.left)
    assert {message.command for message in server.said if isinstance(message, Status)} == {"go"}


def test_what_ends_a_stage_is_told_at_once(tmp_path: Path, free_port_block: int) -> None:
    """Not with the next heartbeat, which is a minute away."""
    with serving(tmp_path, free_port_block, resident=False) as (coordinator, client, server):
        asked = len(server.said)
        coordinator.controls.pause()
        until(lambda: client.command == "pause")
        coordinator.stop()
        until(lambda: client.command == "drain")
        assert [one.command for one in server.said[asked:] if isinstance(one, Status)] == ["pause", "drain"]
        client.leave()
    assert coordinator.view()["stage"] == "ended"


@pytest.mark.parametrize("flight", [0.0, 1.0])
def test_a_learner_hears_at_once_that_its_run_is_stopped_and_whether_anything_still_comes(
    tmp_path: Path, server: Any, flight: float
) -> None:
    coordinator = coordinator_of(tmp_path, server, actors=1)
    learner, actor = crowd(coordinator, server, 1)
    coordinator._heartbeat(b"0", learner)
    assert "cut_short" not in server.answers[-1].view

    def told() -> list[dict[str, Any]]:
        asked = len(server.answers)
        coordinator._advance(time.monotonic())
        coordinator._tell_news()
        views = [answer.view for answer in server.answers[asked:] if isinstance(answer, Status)]
        return [view for view in views if "evaluations" in view]

    coordinator.stop()
    assert [(view["cut_short"], view["settled"]) for view in told()] == [(True, False)]
    left: dict[str, Any] = {"name": actor.name, "token": actor.token, "incarnation": actor.incarnation}
    coordinator._leave(b"1", Leave(**left, counters={"flight.agent_0": flight}))
    assert [(view["cut_short"], view["settled"]) for view in told()] == [(True, not flight)]
    coordinator.close()


@pytest.mark.parametrize(("hooked", "stage"), [("learner", "running"), ("actor", "actors_draining")])
def test_only_who_calls_hooks_may_ask_for_the_end_of_the_run(
    tmp_path: Path, server: Any, hooked: str, stage: str
) -> None:
    coordinator = coordinator_of(tmp_path, server, hooked=(hooked,), actors=1, hooks=["a:B"])
    _, actor = crowd(coordinator, server, 1)
    who: dict[str, Any] = {"name": actor.name, "token": actor.token, "incarnation": actor.incarnation}
    coordinator._heartbeat(b"1", Heartbeat(state="acting", **who, metrics={ENDING: FAILED}))
    coordinator._advance(time.monotonic())
    assert coordinator.view()["stage"] == stage
    coordinator.close()


def test_what_earlier_coordinators_refused_is_counted_on(tmp_path: Path, server: Any) -> None:
    first = coordinator_of(tmp_path, server)
    server.counts["requests"] += 3
    first._members.save()
    first.close()
    second = coordinator_of(tmp_path, server)
    assert second.finish()["refused"]["requests"] == 3
    second.close()


def test_a_run_that_reached_its_end_untrained_is_not_complete(tmp_path: Path, server: Any) -> None:
    made = coordinator_of(tmp_path, server)
    made._members.complete = True
    assert made.finish()["complete"] is made._members.complete is False
    assert json.loads((tmp_path / "summary.json").read_text())["untrained"] == ["agent_0", "agent_1"]
    made.close()


def test_however_an_actor_calls_what_it_counts_and_measures_the_run_is_shown(
    tmp_path: Path, free_port_block: int
) -> None:
    """As many names as are kept of it, and those of others' facts; and half of what tells of a finding."""
    place = dict.fromkeys(("name", "role", "state", "host", "pid", "silent", "incarnation"), 1.0)
    half = {"health.observation_outside.agent_0": 1.0, "outside_step.agent_0/agent_0": 5.0, "agent_steps": 4.0}
    with serving(tmp_path, free_port_block, resident=False) as (coordinator, client, _), ExitStack() as stack:
        context, address = zmq.Context[Any](1), f"tcp://127.0.0.1:{free_port_block}"
        stack.callback(context.destroy, linger=0)
        who: dict[str, Any] = {"name": client.welcome.name, "token": client.token, "incarnation": 1}
        peer = connect(context, zmq.DEALER, address)
        waits = {f"waits.{number}": 1.0 for number in range(1_197)} | half
        names: dict[str, Any] = {"metrics": place | {f"{n}": 1.0 for n in range(1_193)}, "counters": half}
        for told in ({"counters": waits}, names):
            peer.send(encode(Heartbeat(state="acting", **who, **told)))
            watcher = ControlClient(context, address, "supervisor")
            stack.callback(watcher.close)
            watcher.join(60)
            watcher.start(lambda: Report("waiting"))
            until(lambda: (status := watcher.status) and status.view.get("made") == 4)  # noqa: B023
            assert watcher.status is not None
            (row,) = watcher.status.view["workers"]
            assert (row["name"], row["state"], row["pid"]) == ("actor-0", "acting", os.getpid())
            assert not watcher.refusals.total
        client.leave()
    assert coordinator.view()["stage"] == "ended"


def test_beats_of_no_member_are_not_read_and_who_sends_too_much_waits(
    tmp_path: Path, free_port_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large beats from nobody only who sends them is looked at; members are answered meanwhile."""
    read = list[int]()

    def reading(frames: list[zmq.Frame]) -> tuple[Message, Any]:
        read.append(len(frames[0]))
        return decode(frames)

    monkeypatch.setattr(control_server, "decode", reading)
    episodes = [("x" * 100, 1, 1, 0.5, 1)] * 1000
    with serving(tmp_path, free_port_block, resident=False) as (coordinator, client, server):
        context = zmq.Context(1)
        stranger = connect(context, zmq.DEALER, f"tcp://127.0.0.1:{free_port_block}")

        def answer(frame: bytes) -> Message:
            stranger.send(frame)
            assert stranger.poll(120_000)
            return decode(stranger.recv_multipart())[0]

        told: dict[str, Any] = {"name": "actor-0", "token": "x", "incarnation": 1, "episodes": episodes}
        try:
            rejoin = answer(encode(Heartbeat(state="acting", **told)))
            assert isinstance(rejoin, Status)
            assert rejoin.command == "rejoin"
            stop = answer(encode(Leave(**told)))
            assert isinstance(stop, Status)
            assert stop.command == "stop"
            assert max(read) < 4096
            hidden = msgpack.packb({"type": "heartbeat", "schema_number": 2, "episodes": episodes, **told})
            for frame in (hidden, bytes(MAX_REQUEST + 1)):
                refused = answer(frame)
                assert isinstance(refused, Refusal)
                assert kinds_in(refused.reason) == ["header_too_large"]
            small = encode(Heartbeat(name="actor-0", token="x", incarnation=1, state="acting"))
            for _ in range(3000):
                stranger.send(small)
            until(lambda: server.refusals.counters().get("refusals.not_read.share_spent", 0) > 1000)
            coordinator.controls.pause()
            until(lambda: client.command == "pause")
            assert max(read) < 4096
            assert server.counts["quarantined_peers"] == 0
        finally:
            context.destroy(linger=0)
        client.leave()


def test_graphs_are_passed_on_of_policies_that_joined_until_they_are_retired(
    coordinator: Coordinator,
) -> None:
    kinds = []
    for words in (["add", "third", "agent_0"], ["retire", "third"]):
        coordinator.controls.roster.command(words, "", "")
        answer = coordinator._graphs.answer("third")[0]
        kinds.append(answer.kind if isinstance(answer, Refusal) else "")
    assert kinds == ["graph_not_exported", "graph_of_no_learner"]
