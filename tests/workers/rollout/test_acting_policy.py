"""Acting weights: adopted whole, on time, and with what is said of them in heartbeats."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from protocol.config.run import IQN, Network, PolicyConfig
from protocol.memory.shared_file import Counters
from protocol.messages.core import Route
from protocol.spaces import Agent, Box, Discrete
from protocol.transport.sockets import Ports
from protocol.weights.manifest import NOTHING, Version, pack
from protocol.weights.publisher import WeightPublisher, WeightSubscriber
from tests.waiting import until
from workers.actor import Actor
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.tensors.flat_weights import flatten_
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.lockstep import AsynchronousSchedule, Progress
from workers.rollout.report import ActorReport

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=2))
CONFIG = PolicyConfig(algorithm=IQN(), model_config=Network(hidden=(8,)))


class Learner:
    """One that publishes what it is told, to actors without shared memory."""

    def __init__(self) -> None:
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        address = self.ports.bind({2: zmq.XPUB})[2]
        self.publisher = WeightPublisher(self.ports.sockets[2], Counters(None, WeightPublisher.COUNTERS))
        self.policy = build(Interface.of(AGENT), CONFIG, 1)
        self.weights = flatten_(self.policy)
        self.publisher.add_policy("a", self.weights.manifest, None, "snapshot")
        self.subscriber = WeightSubscriber(self.context, "a", self.weights.manifest, "tcp")
        self.subscriber.route(
            Route(
                policy="a",
                learner="learner-a",
                incarnation=1,
                experience=address,
                weights=address,
                acknowledgements=address,
            )
        )

    def publish(self, number: int) -> None:
        self.weights.bytes_view()[:4].view(np.float32)[0] = number
        self.publisher.publish("a", self.weights.source(), Version(1, number))

    def close(self) -> None:
        self.subscriber.close()
        self.publisher.close()
        self.ports.close()
        self.context.destroy(linger=0)


@pytest.fixture
def learner() -> Iterator[Learner]:
    made = Learner()
    yield made
    made.close()


def _first(performer: ActingPolicy) -> float:
    flat = performer._flat[performer._live]
    return float(flat.bytes_view()[:4].view(np.float32)[0])


def test_weights_are_adopted_whole_into_the_spare_module_and_then_act_C2_J3(learner: Learner) -> None:
    """C2, J3: nothing changes between two looks, whatever is published; rows get the packed version."""
    performer = ActingPolicy(Interface.of(AGENT), CONFIG)
    assert performer.version == NOTHING
    learner.publish(5)
    until(lambda: performer.adopt(learner.subscriber.adopt))
    assert (performer.version, _first(performer)) == (Version(1, 5), 5.0)
    assert int(performer.packed_version) == pack(Version(1, 5))
    learner.publish(6)
    assert _first(performer) == 5.0
    until(lambda: performer.adopt(learner.subscriber.adopt))
    assert (performer.version, _first(performer)) == (Version(1, 6), 6.0)
    assert performer.adopted == 2


def test_an_actor_looks_every_sync_interval_turns_C12() -> None:
    """C12: at turn 0 and at each multiple, each policy at its own pace."""
    looks: list[tuple[int, str]] = []
    turn = 0
    performers = {
        name: SimpleNamespace(adopt=lambda _, name=name: looks.append((turn, name))) for name in ("often", "seldom")
    }
    actor = SimpleNamespace(
        _schedule=AsynchronousSchedule(),
        _check=None,
        _sync_intervals={"often": 3, "seldom": 7},
        _performers=performers,
        _transport=SimpleNamespace(
            subscribers=dict.fromkeys(performers, SimpleNamespace(adopt=None)), wait_for_version=lambda *_: False
        ),
    )
    for turn in range(15):
        Actor._adopt_newer_weights(actor, Progress(turn))  # type: ignore[arg-type]
    assert [at for at, name in looks if name == "often"] == [0, 3, 6, 9, 12]
    assert [at for at, name in looks if name == "seldom"] == [0, 7, 14]


def test_with_each_pulse_what_is_held_or_lost_is_announced_though_nobody_acts() -> None:
    pumped: list[str] = []
    changed = Event()
    actor = SimpleNamespace(
        _check=None,
        _count_environment=dict,
        _life=SimpleNamespace(client=SimpleNamespace(changed=changed)),
        _report=SimpleNamespace(collect=lambda: None),
        _collectors=SimpleNamespace(writing=[]),
        _transport=SimpleNamespace(flush=lambda _: pumped.append("one"), update_routes=lambda: None),
        _silent=frozenset(),
        _on_status=lambda _: None,
        _follow_roster=lambda: None,
    )
    for turn in range(4):
        if turn % 2:
            changed.set()
        Actor._follow_status(actor)  # type: ignore[arg-type]
    assert pumped == ["one"] * 2


def test_a_heartbeat_tells_the_version_adopted_and_how_stale_it_is_C12(learner: Learner) -> None:
    """C12: adoption lag is learner version minus adopted version, and is zero again after a look."""
    performer = ActingPolicy(Interface.of(AGENT), CONFIG)
    learner.publish(1)
    until(lambda: performer.adopt(learner.subscriber.adopt))
    counters = Counters(None, *ActorReport.names(["a"]))
    report = ActorReport(counters, 100, {"a": performer}, {"a": learner.subscriber}, {})
    for number in range(2, 12):
        learner.publish(number)

    def known() -> bool:
        learner.subscriber.adopt(performer.spare, Version(2**24, 0))  # listens only
        return learner.subscriber.newest.version == 11

    until(known)
    metrics = report.snapshot().metrics
    assert (metrics["adopted.a"], metrics["adoption_lag.a"]) == (1, 10)
    until(lambda: performer.adopt(learner.subscriber.adopt) and performer.version == Version(1, 11))
    metrics = report.snapshot().metrics
    assert (metrics["adopted.a"], metrics["adoption_lag.a"]) == (11, 0)
    assert metrics["weight_requests.a"] == learner.subscriber.requests >= 2
    assert metrics["weight_requests_repeated.a"] == metrics["torn_reads.a"] == 0
