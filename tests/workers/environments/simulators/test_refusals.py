"""What breaks the rules is told in one sentence with a code, is not taken in, and disturbs nobody else."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from protocol.errors import EnvironmentFault, Timeout
from protocol.messages.codec import encode
from protocol.messages.simulator import Admit, Bye, End, Fault, Hello, Observe, Ping, Pong
from protocol.simulator.client import Simulator, SimulatorFault
from protocol.spaces import Action, Agent, Box, Dict, Discrete, MultiDiscrete, World
from protocol.transport.curve import RIGHTS, new_keys
from protocol.transport.sockets import open_context
from tests.chaos.attacks import Peer
from tests.faults import kinds_in, raises, words_in
from tests.waiting import until
from tests.workers.environments.simulators.raw import raw, seen
from tests.workers.environments.simulators.serving import serving
from workers.environments.simulators import quarantine, session

NAN, NOBODY = float("nan"), "no such agent"


def observe(**fields: Any) -> Observe:
    """The next one after `Raw.begin`."""
    return Observe(**{"number": 2, "episode": 1, "agents": ["walker"], **fields})


def end(**fields: Any) -> End:
    return End(**{"episode": 1, "agents": ["walker"], **fields})


def told(*infos: Any) -> list[Any]:
    """An end that tells something, right or wrong."""
    return [msgpack.packb({"type": "end", "schema_number": 2, "episode": 1, "agents": ["walker"], "infos": infos})]


WRONG: dict[str, tuple[str, list[Any]]] = {
    "nothing to see": ("size", [observe()]),
    "half an observation": ("size", [observe(), seen(1)]),
    "two frames": ("size", [observe(), seen(1, 2), seen(1, 2)]),
    "an observation without end": ("size", [observe(), b"\0" * 60_000]),
    "not a number": ("value", [observe(), seen(1, NAN)]),
    "infinite": ("value", [observe(), seen(1, float("inf"))]),
    "a reward too large": ("value", [observe(rewards=[1e39]), seen(1, 2)]),
    "an unknown agent": ("agent", [observe(agents=[NOBODY]), seen(1, 2)]),
    "an agent twice": ("agent", [observe(agents=["walker"] * 2), seen(1, 2, 3, 4)]),
    "no agent": ("agent", [observe(agents=[])]),
    "an old number": ("number", [observe(number=1), seen(1, 2)]),
    "another episode": ("episode", [observe(episode=2), seen(1, 2)]),
    "an earlier episode ends": ("episode", [end(episode=3)]),
    "too many rewards": ("reward", [observe(rewards=[1.0, 2.0]), seen(1, 2)]),
    "an element of an atomic action": ("element", [observe(elements=["left"]), seen(1, 2)]),
    "an end that leaves somebody out": ("order", [end(agents=[])]),
    "a cut without a last observation": ("size", [end(truncated=True)]),
    "an end with an observation": ("size", [end(), seen(1, 2)]),
    "what is told of an agent too many": ("info", told({"won": True}, {"won": True})),
    "a text that is told": ("message", told({"won": "yes"})),
    "a number that is told and is none": ("message", told({"far": NAN})),
    "one that is infinite": ("message", told({"far": float("inf")})),
    "what is told inside of what is told": ("message", told({"far": {"x": 1.0}})),
    "what is told without a name": ("message", told({"": 1.0})),
    "what is told by a long name": ("message", told({"x" * 49: 1.0})),
    "more names than 30": ("message", told({f"x{number}": 1.0 for number in range(31)})),
    "garbage": ("message", [b"\xc1garbage", b"more"]),
    "an answer": ("message", [Pong(pace="going")]),
    "another schema": ("message", [encode(observe()).replace(b"schema_number\x02", b"schema_number\x07"), seen(1, 2)]),
    "an unknown field": ("message", [msgpack.packb({"type": "ping", "schema_number": 2, "x": 1})]),
    "a reward that is none": ("message", [encode(observe(rewards=[1.5])).replace(b"\xcb\x3f\xf8", b"\xcb\x7f\xf8")]),
}


def test_a_message_that_never_ends_costs_its_connection_and_nobody_elses() -> None:
    with serving() as served, Simulator(served.address, "neighbour") as other:
        ports = served.external._ports
        assert ports is not None
        with closing(Peer(served.address, "DEALER", patience=60)) as endless:
            endless.unfinished(2**26)
        for number in range(100):
            assert other.act([float(number % 8), 0.0]) == number % 8
        assert ports.guard.cut == 1
        assert ports.guard.refusals.counters()["refusals.connection_cut.bytes_waiting"] == 1


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_and_the_episode_goes_on_I8(case: str) -> None:
    """I8: the same simulator may say it again, right; its neighbour has noticed nothing."""
    code, frames = WRONG[case]
    with serving() as served, raw(served.address) as one, Simulator(served.address, "neighbour") as other:
        one.begin()
        assert other.act([2.0, 0.0]) == 2
        fault = one.ask(*frames)
        assert isinstance(fault, Fault)
        assert (fault.code, fault.fatal) == (code, False), fault
        assert fault.answers in (0, 1 if case == "an old number" else 2)
        assert fault.reason.count(". ") == 0, "one sentence"
        assert other.act([3.0, 0.0], 1.0) == 3
        assert one.ask(observe(number=3, rewards=[4.0]), seen(5, 0)).type == "act"
        assert [(int(row.action), row.reward) for row in served.rows(copy=1)] == [(1, 4.0), (5, 0.0)]
        assert served.figures()["simulators_faults"] == 1


def test_what_is_told_of_an_episode_is_counted_with_its_end_and_not_with_one_that_is_refused() -> None:
    with serving() as served, raw(served.address) as one, Simulator(served.address, "other") as other:
        one.begin()
        assert one.ask(end(episode=2, infos=[{"won": True}])).type == "fault"
        one.say(end(infos=[{"won": True, "far": 2}]))
        assert other.act([3.0, 0.0]) == 3
        for wrong in ({"far": NAN}, {"far": "x"}, {"x" * 49: 1.0}, {"far": np.ones(2)}):
            with raises(EnvironmentFault, "simulator_info_invalid", agent="walker"):
                other.end_episode(info=wrong)
        other.end_episode(info={"won": np.bool_(False), "far": np.float32(0.5)})
        served.settle()
        assert served.environment.take_episodes() == {("info/won", 0): (2, 1.0), ("info/far", 0): (2, 2.5)}


def test_an_episode_ends_once() -> None:
    with serving() as served, raw(served.address) as one:
        one.begin()
        one.say(end())
        fault = one.ask(end())
        assert isinstance(fault, Fault)
        assert (fault.code, kinds_in(fault.reason)) == ("episode", ["end_without_episode"])
        reward = one.ask(Observe(number=2, episode=2, agents=["walker"], rewards=[1.0]), seen(1, 2))
        assert isinstance(reward, Fault)
        assert reward.code == "reward"


def test_who_was_not_let_in_is_told_to_say_hello() -> None:
    with serving() as served, raw(served.address) as one:
        fault = one.ask(observe(), seen(1, 2))
        assert isinstance(fault, Fault)
        assert fault.code == "unknown"


@pytest.mark.parametrize(
    ("fields", "code", "fatal"),
    [
        ({"oldest_schema": 3, "newest_schema": 9}, "version", True),
        ({"world": "0123456789abcdef"}, "world", True),
        ({}, "full", False),
    ],
)
def test_who_does_not_belong_here_is_not_let_in(fields: dict[str, Any], code: str, fatal: bool) -> None:
    with serving(copies=1) as served, Simulator(served.address, "neighbour") as sim, raw(served.address) as one:
        fault = one.ask(Hello(**{"name": "raw", "token": "t", **fields}))
        assert isinstance(fault, Fault)
        assert (fault.code, fault.fatal) == (code, fatal)
        assert sim.act([3.0, 0.0]) == 3


def test_who_claims_the_name_of_one_that_goes_on_speaking_need_not_ask_again() -> None:
    with serving() as served, Simulator(served.address, "neighbour") as sim, raw(served.address) as one:

        def refused() -> Fault:
            fault = one.ask(Hello(name="neighbour", token="t"))
            assert isinstance(fault, Fault)
            assert fault.code == "identity"
            return fault

        def spoke() -> bool:
            sim.ping()
            return refused().fatal

        sim.ping()
        assert not refused().fatal, "it may have died since, and this be itself again"
        until(spoke, what="it lives")
        until(lambda: not refused().fatal, what="it may have died since")  # its last word may have come late


def test_who_does_nothing_else_is_quarantined_and_counted() -> None:
    with serving() as served, raw(served.address) as one, Simulator(served.address, "neighbour") as sim:
        one.begin()
        faults = [one.ask(observe(), seen(NAN, 1)) for _ in range(20)]
        last = faults[-1]
        assert isinstance(last, Fault)
        assert (last.code, last.fatal) == ("quarantined", True)
        again = one.ask(Hello(name="raw", token="another"))
        assert isinstance(again, Fault)
        assert again.code == "quarantined"
        assert sim.act([3.0, 0.0]) == 3
        until(lambda: served.rows(copy=1)[0].end == "truncated", what="its episode is cut")
        assert served.figures()["simulators_quarantined"] == 1


@pytest.mark.parametrize(("patient", "heard"), [(0.0, 30), (0.5, 21)])
def test_who_waits_for_a_copy_may_ask_each_second_but_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch, patient: float, heard: int
) -> None:
    """Thirty times here, of which none, or all but the first, come too soon."""
    monkeypatch.setattr(quarantine, "PATIENT", patient)
    with serving(copies=1) as served, Simulator(served.address, "neighbour"), raw(served.address) as one:
        for _ in range(30):
            one.say(Hello(name="raw", token="t"))
        until(lambda: served.figures()["simulators_faults"] + served.figures()["simulators_ignored"] == 30)
        assert served.figures()["simulators_faults"] == heard
        assert served.figures()["simulators_quarantined"] == (heard < 30)


def test_who_comes_under_ever_new_names_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MOST_NAMES", 3)
    with serving() as served, raw(served.address) as one:
        for number in range(6):
            one.enter(f"raw-{number}")
        assert one.enter("raw-5").incarnation == 2
        assert served.external._server is not None
        assert list(served.external._server._names._incarnations) == ["raw-3", "raw-4", "raw-5"]
        assert served.external._server._socket.getsockopt(zmq.RCVHWM) == 1000


def test_who_says_hello_again_and_again_is_quarantined() -> None:
    with serving(rate=50) as served, raw(served.address) as one:
        for number in range(60):
            one.say(Hello(name=f"raw-{number}", token="t"))
        fault = until(lambda: isinstance(said := one.hear(), Fault) and said, what="it is told")
        assert (fault.code, fault.fatal) == ("rate", True)


def test_what_strangers_say_is_one_short_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with serving() as served, raw(served.address) as one:
        one.enter("raw", software="v1\nevent=forged")
        one.say(Bye(reason="\x1b[2Jtired\n" * 5000))
        until(lambda: served.figures()["simulators_left"] == 1, what="it left")
        assert served.figures()["simulators_faults"] == 0
    lines = [record.getMessage() for record in caplog.records]
    assert any("software=v1 event=forged" in line for line in lines)
    assert all(len(line) < 1200 and line.isprintable() for line in lines)


def test_who_comes_and_goes_all_the_time_makes_a_short_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with serving(rate=100_000) as served, raw(served.address) as one:
        for _ in range(500):
            one.say(Hello(name="raw", token="t"))
        until(lambda: served.figures()["simulators_admitted"] == 500)
        for _ in range(500):
            one.say(Bye())
            one.say(Ping())
            one.say(Hello(name="raw", token="t"))
        until(lambda: served.figures()["simulators_admitted"] == 1000)
        assert served.figures()["simulators_faults"] == 500
    assert len(caplog.messages) < 400


def test_a_large_observation_that_is_wrong_all_over_is_told_shortly() -> None:
    agent = Agent(name="walker", observation=MultiDiscrete(nvec=(2,) * 30_000), action=Discrete(n=8))
    with serving(World(id="grid", agents=(agent,))) as served, raw(served.address) as one:
        one.enter("raw")
        fault = one.ask(Observe(number=1, episode=1, agents=["walker"]), np.full(30_000, 1_000_000, "<i8").tobytes())
        assert isinstance(fault, Fault)
        assert fault.code == "value"
        assert len(fault.reason) < 300


def test_no_number_of_late_actions_is_too_many_to_be_counted() -> None:
    with serving() as served, raw(served.address) as one:
        one.begin()
        for number in (2, 3):
            assert one.ask(observe(number=number, late=2**63 - 1), seen(1, 2)).type == "act"
        assert served.figures()["simulators_late"] == 2**53


def test_who_asks_without_waiting_is_quarantined() -> None:
    with serving(rate=50) as served, raw(served.address) as one:
        one.enter("raw")
        for _ in range(60):
            one.say(Ping())
        fault = until(lambda: isinstance(said := one.hear(), Fault) and said, what="it is told")
        assert (fault.code, fault.fatal) == ("rate", True)


def test_who_floods_holds_nobody_up() -> None:
    """Hundreds of messages of a simulator that wait are no reason to let another one wait for its action."""
    with serving(rate=1_000_000) as served, raw(served.address) as one, Simulator(served.address, "neighbour") as sim:
        one.begin()
        server = served.external._server
        assert server is not None
        taken: list[int] = []
        receive = server.receive

        def counted(milliseconds: int, enough: int = 1) -> int:
            taken.append(receive(milliseconds, enough))
            return taken[-1]

        server.receive = counted  # type: ignore[method-assign]
        ping = encode(Ping())
        for _ in range(900):  # as many answers as may wait unread
            one.say(ping)
        for _ in range(20):
            assert sim.act([3.0, 0.0]) == 3
        assert all(isinstance(one.hear(30.0), Pong) for _ in range(900))
        assert max(taken) <= 256


def test_a_huge_message_costs_the_connection_and_nothing_else() -> None:
    with serving() as served, raw(served.address) as one, Simulator(served.address, "neighbour") as sim:
        one.begin()
        one.say(observe(), bytes(50_000_000))
        assert sim.act([3.0, 0.0]) == 3
        one.say(Hello(name="raw", token="token of raw"))
        until(lambda: isinstance(one.hear(), Admit), what="it is let in again")
        until(lambda: served.rows(copy=1)[0].end == "truncated", what="its episode is cut")


PARTS = Action(space=Dict(spaces={"look": Discrete(n=3), "move": Box(shape=(2,))}), atomic=False)


def test_the_elements_of_an_action_that_is_not_atomic_are_done_one_by_one_I3() -> None:
    """I3: only those asked for are sent; the client gives them as they are named."""
    world = World(id="parts", agents=(Agent(name="walker", observation=Box(shape=(2,)), action=PARTS),))

    def policy(present: Any) -> Any:
        chosen = world.places[0].acted.zeros(len(present.observation))
        chosen["look"], chosen["move"] = 2, present.observation
        return chosen

    with serving(world, policy=policy) as served, Simulator(served.address, "one") as sim:
        assert sim.act([1.0, 2.0], elements=["look"]) == {"look": 2}
        moved = sim.act([3.0, 4.0], elements=["move"])
        assert moved.keys() == {"move"}
        assert np.array_equal(moved["move"], [3.0, 4.0])
        assert sim.act([5.0, 6.0]).keys() == {"look", "move"}
        with raises(SimulatorFault, "simulator_refused", code="element") as caught:
            sim.act([1.0, 1.0], elements=["jump"])
        said = str(caught.value)
        assert kinds_in(said) == ["simulator_element_unknown"]
        assert {"'jump'", "look", "move"} <= words_in(said)


def test_five_hundred_spoilt_messages_end_nothing() -> None:
    """Whatever they are, from whoever is let in or not."""
    chance = random.Random(0)
    whole = [
        [encode(Hello(name="raw", token="token of raw"))],
        [encode(observe()), seen(1, 2)],
        [encode(observe(number=3, rewards=[1.0])), seen(1, 2)],
        [encode(end(truncated=True)), seen(1, 2)],
        [encode(Ping())],
    ]
    with serving() as served, Simulator(served.address, "neighbour") as sim:
        for _ in range(20):
            with raw(served.address) as one:
                for _ in range(25):
                    frames = [bytearray(frame) for frame in chance.choice(whole)]
                    for _ in range(chance.randrange(3)):
                        frame = chance.choice(frames)
                        frame[chance.randrange(len(frame))] = chance.randrange(256)
                    if chance.random() < 0.2:
                        frames.append(bytearray(chance.randbytes(8)))
                    one.say(bytes(frames[0]), *map(bytes, frames[1:]))
                one.say(Ping())
                one.hear()
            assert sim.act([3.0, 0.0]) == 3
        assert served.figures()["simulators_faults"] > 100


def test_keys_let_simulators_in_and_nobody_else(tmp_path: Path) -> None:
    """Another role's key is for other ports; to a learner's sockets a simulator's key opens none (RIGHTS)."""
    keys = tmp_path / "keys"
    new_keys(keys)
    context = open_context(str(keys), "actor")
    with serving(context=context) as served:
        with Simulator(served.address, "one", keys=str(keys)) as sim:
            assert sim.act([3.0, 0.0]) == 3
        for role in ("learner", "relay"):
            other = open_context(str(keys), role)
            with raises(Timeout, "keys_not_accepted", peer=served.address):
                Simulator(served.address, "two", context=other, patience=1.0).__enter__()
            other.destroy(linger=0)
    context.destroy(linger=0)
    assert [port for port, roles in RIGHTS.items() if "simulator" in roles] == ["simulators"]
