"""Segments and weights through a relay, between real sockets of real ends; and who is led by which relay."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from protocol.config.run import Run
from protocol.errors import ConfigurationError, SharedMemoryError, WireError
from protocol.experience import ack_publisher, sender
from protocol.experience.receipt_log import ReceiptLog
from protocol.memory.shared_file import PREFIX, Counters, files
from protocol.messages.codec import encode
from protocol.messages.core import Ack, Heartbeat, Join, Route
from protocol.spaces import Agent, Box, Discrete, World
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.node_id import node_name
from protocol.transport.sockets import Ports
from protocol.weights.manifest import Entry, Manifest, Version
from protocol.weights.publisher import WeightPublisher
from tests.faults import kinds_in, raises
from tests.protocol.parts import BLOCK, POLICY, RUN, SECRET, Actor, Learner
from tests.protocol.weights.test_publisher import Publisher, Subscriber
from tests.waiting import until
from tests.workers.coordination.test_membership import admitted, join, members_of, refused
from workers.coordination.assignments import route_via_relays
from workers.planning.auxiliary_plan import plan_learners
from workers.planning.policy_plan import PolicyPlan, TrainingPlan, plan_policies
from workers.relaying.segment_relay import SegmentRelay
from workers.relaying.weight_relay import WeightRelay

WORLD = World(id="walk", agents=(Agent(name=POLICY, observation=Box(shape=(3,)), action=Discrete(n=100)),))
PPO: dict[str, Any] = {"name": "ppo", "epochs": 1, "minibatches": 2}
IQN: dict[str, Any] = {"name": "iqn", "buffer_capacity": 64, "learning_starts": 8, "batch_size": 8, "frames": 1}
NAMES = [
    f"{kind}.{POLICY}" for kind in ("relayed", "repeated", "waiting_for_room", "refused", "held", "weights_relayed")
] + ["quarantined_messages", "out_of_order", "refused_acks", "push_full", *WeightPublisher.COUNTERS]


def plan_of(algorithm: dict[str, Any] = PPO, credits: int = 6, **policy: Any) -> PolicyPlan:
    """The plan of POLICY in a run whose actor has as many streams as a block of `Actor` has segments."""
    run = Run.model_validate(
        {
            "actors": 2,
            "environment": {"copies": BLOCK},
            "policy": {"algorithm": algorithm, "segment_length": 4, "credits": credits, **policy},
        }
    )
    return plan_policies(run, WORLD)[POLICY]


class Relay:
    """The half that passes segments on, at a port that may be given."""

    def __init__(self, memory: Path, plan: TrainingPlan, incarnation: int = 1) -> None:
        self.plan, self.incarnation = plan, incarnation
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        self.address = self.ports.bind({1: zmq.PULL})[1]
        self.counters = Counters(None, NAMES)
        self.pool = memory / f"{PREFIX}{RUN}-relay-0.{incarnation}-{POLICY}.pool"
        self.passed = SegmentRelay(
            self.context, self.ports.sockets[1], RUN, SECRET, lambda _: self.pool, None, self.counters
        )

    def count(self, kind: str) -> float:
        """A counter of the policy."""
        return self.counters[f"{kind}.{POLICY}"]

    def serve(self, learner: Learner) -> Route:
        """Follows the learner; the route that actors elsewhere get."""
        self.passed.follow(self.plan, learner.route)
        update = {"experience": self.address, "experience_relay": self.incarnation}
        return learner.route.model_copy(update=update)

    def close(self) -> None:
        self.passed.close()
        self.ports.close()
        self.context.destroy(linger=0)


class Scene:
    """Ends that are closed when the test is over."""

    def __init__(self, memory: Path, stack: ExitStack) -> None:
        self.memory, self.stack = memory, stack

    def relay(self, plan: TrainingPlan, incarnation: int = 1) -> Relay:
        made = Relay(self.memory, plan, incarnation)
        self.stack.callback(made.close)
        return made

    def ends(self, plan: TrainingPlan, ledger: Path | None = None) -> tuple[Relay, Learner, Actor]:
        """An actor, which is led by the relay to the learner."""
        relay, learner, actor = self.relay(plan), self.learner(plan, ledger=ledger), self.actor(plan)
        actor.sender.route(relay.serve(learner), inline=True)
        return relay, learner, actor

    def learner(self, plan: TrainingPlan, incarnation: int = 1, ledger: Path | None = None) -> Learner:
        made = Learner(ledger, incarnation, pool=plan.pool_slots, layout=plan.layout)
        self.stack.callback(made.close)
        return made

    def actor(self, plan: TrainingPlan, name: str = "actor-0", **keys: Any) -> Actor:
        made = Actor(None, name, layout=plan.layout, **keys)
        self.stack.callback(made.close)
        return made


@pytest.fixture
def scene(memory_dir: Path) -> Any:
    """Everything that a test made is closed, the newest first."""
    with ExitStack() as stack:
        yield Scene(memory_dir, stack)


def shipped(relay: Relay, learner: Learner, *actors: Actor, count: int) -> None:
    """Until the learner has used `count` segments and everybody knows."""

    def step() -> bool:
        for actor in actors:
            actor.sender.pump()
        relay.passed.turn()
        enough = learner.uses(count)
        return enough and all(actor.sender._credit.idle for actor in actors) and not relay.count("held")

    until(step)


def test_segments_of_many_actors_reach_the_learner_through_one_file_that_is_used_again_and_again(scene: Scene) -> None:
    plan = plan_of()
    relay, learner = scene.relay(plan), scene.learner(plan)
    actors = [scene.actor(plan, f"actor-{i}") for i in range(2)]
    for actor in actors:
        actor.sender.route(relay.serve(learner), inline=True)
    for turn in range(10):
        for actor in actors:
            actor.write(2)
        shipped(relay, learner, *actors, count=(turn + 1) * 2 * 2 * BLOCK)
    assert relay.pool.exists()
    assert plan.pool_slots < 10 * 2 * 2 * BLOCK
    for who in ("actor-0", "actor-1"):
        numbers = [number for name, _, number in learner.got if name == who]
        assert numbers == list(range(1, 10 * 2 * BLOCK + 1))
    assert learner.wrong == 0
    assert relay.count("relayed") == len(learner.got)
    assert relay.count("repeated") == relay.count("waiting_for_room") == relay.counters["quarantined_messages"] == 0
    assert learner.counters["quarantined_messages"] == learner.counters["out_of_order"] == 0
    assert len(learner.receiver._intakes[POLICY].rings) == 2, "one attachment for each actor"


def test_what_an_auxiliary_is_told_passes_though_nobody_acts_in_it_J1(scene: Scene) -> None:
    policy = {"algorithm": {**PPO, "curiosity": {"auxiliary": POLICY}}, "segment_length": 4}
    auxiliary = {"algorithm": {"minibatches": 1}}
    run = Run.model_validate(
        {
            "environment": {"copies": BLOCK},
            "agents": {POLICY: "walker"},
            "policy": policy,
            "auxiliaries": {POLICY: auxiliary},
        }
    )
    plan = plan_learners(run, WORLD)[POLICY]
    relay, learner, actor = scene.ends(plan)
    actor.write(2)
    shipped(relay, learner, actor, count=2 * BLOCK)
    assert learner.wrong == relay.count("refused") == 0


def test_checksums_are_those_of_the_pool(scene: Scene) -> None:
    """Where processors do not show stores in order, or somebody wants it, a reader checks what it copied."""
    plan = plan_of(checksums=True)
    relay, learner, actor = scene.ends(plan)
    actor.write(2)
    shipped(relay, learner, actor, count=2 * BLOCK)  # `Learner.use` asserts that all is intact
    ring = learner.receiver._intakes[POLICY].rings["actor-0", 1]
    assert ring.checksums
    records = ring.table[:1].copy()
    assert ring.intact(records).all()
    ring.columns["reward"][0] += 1
    assert not ring.intact(records).any()


def test_a_learner_that_comes_back_is_told_of_everything_it_has_not_settled_G1(scene: Scene, tmp_path: Path) -> None:
    """G1: its next incarnation gets from the relay what the dead one had not used, and nothing else twice."""
    plan = plan_of()
    relay, first, actor = scene.ends(plan, tmp_path / "ledger")
    actor.write(1)
    shipped(relay, first, actor, count=BLOCK)
    actor.write(3)
    until(lambda: relay.passed.turn() is not None and relay.count("held") == 3 * BLOCK)
    actor.sender.disconnect()  # it has said everything: the rest is between relay and learner
    second = scene.learner(plan, 2, tmp_path / "ledger")
    relay.serve(second)
    until(lambda: relay.passed.turn() is not None and second.uses(3 * BLOCK))
    assert [number for _, _, number in second.got] == list(range(BLOCK + 1, 4 * BLOCK + 1))
    assert second.wrong == 0
    until(lambda: relay.passed.turn() is not None and not relay.count("held"))


def _waiting(learner: Learner) -> int:
    """Segments received and not settled."""
    return sum(len(arrival.records) for arrival in learner.receiver.arrivals(POLICY))


def test_a_relay_that_comes_back_takes_over_and_what_had_arrived_through_the_dead_one_is_still_used(
    scene: Scene,
) -> None:
    """Its pool is another file with another nonce; the old one goes when the learner has let go of it."""
    plan = plan_of()
    old, learner, actor = scene.ends(plan)
    actor.write(2)
    until(lambda: old.passed.turn() is not None and (learner.listen() or _waiting(learner) == 2 * BLOCK))
    old.passed.close()
    assert old.pool.exists(), "the learner holds it"
    new = scene.relay(plan, 2)
    actor.sender.route(new.serve(learner), inline=True)
    actor.write(1)
    until(lambda: new.passed.turn() is not None and (learner.listen() or _waiting(learner) == 3 * BLOCK))
    assert learner.counters["repeated_headers"] == 2 * BLOCK, "what it knew from the dead one"
    learner.receiver.let_go(POLICY, lambda _: False)
    assert old.pool.exists(), "not all of it was copied"
    shipped(new, learner, actor, count=3 * BLOCK)
    assert [number for _, _, number in learner.got] == list(range(1, 3 * BLOCK + 1))
    assert learner.wrong == 0
    learner.receiver.living({("actor-0", 1)})
    learner.receiver.let_go(POLICY, lambda ring: ring.path == old.pool)
    assert old.pool.exists(), "replay may want it"
    learner.receiver.let_go(POLICY, lambda _: False)
    assert list(files()) == [new.pool]


def test_what_is_announced_again_is_not_copied_again_and_what_is_settled_not_even_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_vain = list[zmq.Frame]()
    monkeypatch.setattr(ByteGuard, "in_vain", lambda _, frame: in_vain.append(frame))
    plan = plan_of()
    relay, learner, actor = scene.relay(plan), scene.learner(plan), scene.actor(plan)
    route = relay.serve(learner)
    actor.sender.route(route, inline=True)
    actor.write(2)
    until(lambda: relay.passed.turn() is not None and relay.count("held") == 2 * BLOCK)
    actor.sender.disconnect()
    actor.sender.route(route.model_copy(update={"incarnation": 9}), inline=True)  # as if it thought all lost
    until(lambda: relay.passed.turn() is not None and relay.count("repeated") == 2 * BLOCK)
    assert relay.count("relayed") == 2 * BLOCK
    until(lambda: learner.uses(2 * BLOCK) and learner.counters["repeated_headers"] == 2 * BLOCK)
    until(lambda: relay.passed.turn() is not None and not relay.count("held"))
    actor.sender.disconnect()  # it has not heard, and believes that nothing arrived
    actor.sender.route(route.model_copy(update={"incarnation": 10, "acknowledgements": "tcp://127.0.0.1:1"}), True)
    until(lambda: relay.passed.turn() is not None and relay.count("repeated") == 4 * BLOCK)
    assert relay.count("held") == 0
    assert len(in_vain) == 4
    learner.listen()
    assert learner.counters["repeated_headers"] == 2 * BLOCK


def test_without_room_a_message_waits_and_is_counted(scene: Scene) -> None:
    """Only actors that do not keep to their credit can bring that about: the pool holds what all may have in flight."""
    plan = plan_of(credits=2)
    relay, learner = scene.relay(plan), scene.learner(plan)
    actor = scene.actor(plan, blocks=9, credits=6)
    room = plan.pool_slots // BLOCK
    actor.sender.route(relay.serve(learner), inline=True)
    actor.write(room + 1)
    until(lambda: relay.passed.turn() is not None and relay.count("waiting_for_room") == BLOCK)
    assert relay.count("held") == plan.pool_slots
    shipped(relay, learner, actor, count=(room + 1) * BLOCK)
    assert [number for _, _, number in learner.got] == list(range(1, (room + 1) * BLOCK + 1))
    assert relay.counters["quarantined_messages"] == 0


def test_one_that_sends_far_beyond_its_credit_is_refused_before_memory_runs_out(scene: Scene) -> None:
    plan = plan_of(credits=2)
    relay, learner = scene.relay(plan), scene.learner(plan)
    room = plan.pool_slots // BLOCK
    actor = scene.actor(plan, blocks=2 * room + 4, credits=2 * room + 2)
    actor.sender.route(relay.serve(learner), inline=True)
    actor.write(2 * room + 2)
    until(lambda: relay.passed.turn() is not None and relay.counters["quarantined_messages"] == 2)
    assert relay.count("waiting_for_room") == relay.count("held") == plan.pool_slots


def test_a_relay_whose_pool_was_made_shorter_ends_with_a_sentence(scene: Scene) -> None:
    """The one that is started in its place makes another pool."""
    plan = plan_of()
    relay, learner, actor = scene.ends(plan)
    actor.write()
    shipped(relay, learner, actor, count=BLOCK)
    os.truncate(relay.pool, 100)
    with raises(SharedMemoryError, "shared_memory_truncated", file=relay.pool):
        relay.passed.turn()


def test_in_replay_the_pool_keeps_what_the_actors_ring_would_keep(scene: Scene) -> None:
    """Settled means admitted: the rows are sampled until as many newer ones have come."""
    plan = plan_of(IQN)
    assert plan.kept_blocks > 2
    relay, learner, actor = scene.ends(plan)
    records: list[np.void] = []
    for turn in range(plan.kept_blocks + 3):
        actor.write(1)
        until(lambda: relay.passed.turn() is not None and (learner.listen() or learner.receiver.arrivals(POLICY)))
        records += list(learner.receiver.arrivals(POLICY)[0].records.copy())
        shipped(relay, learner, actor, count=(turn + 1) * BLOCK)
    ring = learner.receiver._intakes[POLICY].rings["actor-0", 1]
    current = [bool(ring.current(np.array([record]))[0]) for record in records]
    assert current == [False] * 3 * BLOCK + [True] * plan.kept_blocks * BLOCK


def test_a_dead_actors_rows_make_room_and_what_no_learner_wants_is_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that the learner refused holds its slot for as long as its actor may announce it again, no longer."""
    monkeypatch.setattr("workers.relaying.policy_relay._REFUSED_AFTER", 0.2)
    plan = plan_of()
    relay, learner, actor = scene.relay(plan), scene.learner(plan), scene.actor(plan)
    stranger = scene.learner(plan_of(segment_length=5), incarnation=1)  # has another layout: refuses everything
    update = {"experience": stranger.route.experience}
    relay.passed.follow(plan, learner.route.model_copy(update=update))
    route = learner.route.model_copy(update={"experience": relay.address, "experience_relay": 1})
    actor.sender.route(route, inline=True)
    actor.write(2)
    until(lambda: relay.passed.turn() is not None and relay.count("held") == 2 * BLOCK)

    def step(actors: set[tuple[str, int]]) -> bool:
        relay.passed.turn()
        stranger.listen()
        learner.listen()
        relay.passed.living(actors)
        return False

    until(lambda: step({("actor-0", 1)}) or stranger.counters["quarantined_messages"] >= 2)
    assert relay.count("refused") == 0, "it lives"
    until(lambda: step(set()) or relay.count("refused") == 2 * BLOCK)
    assert relay.count("held") == 0


def test_what_breaks_a_rule_is_refused_in_one_sentence_and_harms_nobody(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of()
    relay, learner = scene.relay(plan), scene.learner(plan)
    good, other = scene.actor(plan), scene.actor(plan_of(segment_length=5), "actor-1")
    near = Actor(scene.memory / f"{PREFIX}{RUN}-actor-2.1-{POLICY}.ring", "actor-2", layout=plan.layout)
    scene.stack.callback(near.close)
    route = relay.serve(learner)
    for actor, inline in ((other, True), (near, False), (good, True)):
        actor.sender.route(route, inline)
        actor.write(1)
    push = relay.context.socket(zmq.PUSH)
    push.connect(relay.address)
    ack = Ack(policy=POLICY, learner_incarnation=1, actor="a", incarnation=1, acknowledged=1, announced=1)
    for frames in ([b"\xc1"], [encode(ack)], [encode(ack), b"", b""]):
        push.send_multipart(frames)
    shipped(relay, learner, good, count=BLOCK)
    until(lambda: relay.passed.turn() is not None and relay.counters["quarantined_messages"] == 5)
    push.close(linger=0)
    assert [name for name, _, _ in learner.got] == ["actor-0"] * BLOCK
    assert {
        "segments_layout_differs",
        "segments_in_remote_memory",
        "message_not_segments",
    } <= {*kinds_in(caplog.text)}


def test_who_is_refused_by_a_relay_hears_from_the_learner_how_often_and_why(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_publisher, "_BEACON_SECONDS", 0.01)
    monkeypatch.setattr(sender, "_RESEND_AFTER", 1e6)  # nothing is refused twice
    plan = plan_of()
    relay, learner, good = scene.relay(plan), scene.learner(plan), scene.actor(plan)
    near = Actor(scene.memory / f"{PREFIX}{RUN}-actor-2.1-{POLICY}.ring", "actor-2", layout=plan.layout)
    scene.stack.callback(near.close)
    route, refused = relay.serve(learner), f"refused_messages.{POLICY}"
    for actor, inline in ((good, True), (near, False)):
        actor.sender.route(route, inline)

    def told(count: int) -> bool:
        relay.passed.turn()
        learner.use()
        for actor in (good, near):
            actor.sender.pump()
        return near.counters[refused] == count

    for count in (1, 3):  # the second and third come within the second after the first and are told together
        near.write(count - near.written // BLOCK)
        good.write(1)
        until(lambda count=count: told(count))  # type: ignore[misc]
    shipped(relay, learner, good, count=2 * BLOCK)
    assert (good.counters[refused], learner.counters["quarantined_messages"]) == (0, 0)
    lines = [one.message for one in caplog.records if "event=segments_refused" in one.message]
    assert [kinds_in(one) for one in lines] == [["segments_in_remote_memory"]]


class Weights:
    """The half that passes weights on, with its own publisher on this node."""

    def __init__(self, path: Path, plan: PolicyPlan) -> None:
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        self.address = self.ports.bind({2: zmq.XPUB})[2]
        self.counters = Counters(None, NAMES)
        self.publisher = WeightPublisher(self.ports.sockets[2], self.counters)
        self.passed = WeightRelay(self.context, plan, path, self.publisher, self.counters)

    def route(self, route: Route) -> Route:
        """What actors on this node are told."""
        return route.model_copy(update={"weights": self.address, "weights_relay": 1})

    def close(self) -> None:
        self.passed.close()
        self.publisher.close()
        self.ports.close()
        self.context.destroy(linger=0)


MIXED = Manifest([Entry("table", "<f4", (2000,), 0), Entry("count", "<i8", (3,), 8000)])


@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_weights_are_asked_for_once_and_read_by_all_from_memory(scene: Scene, wire: Any) -> None:
    """J3: unchanged ones cost nothing; versions and manifest are the learner's."""
    upstream = Publisher(None, manifest=MIXED, wire=wire)
    scene.stack.callback(upstream.close)
    path = scene.memory / f"{PREFIX}{RUN}-relay-0.1-{POLICY}.weights"
    relay = Weights(path, plan_of())
    scene.stack.callback(relay.close)
    readers = [Subscriber(manifest=MIXED) for _ in range(3)]
    for reader in readers:
        scene.stack.callback(reader.close)
        reader.subscriber.route(relay.route(upstream.route))
    relay.passed.follow(upstream.route)
    assert not relay.passed.ready
    for number in range(1, 4):
        flat = np.zeros(MIXED.nbytes, np.uint8)
        flat[:8000].view("<f4")[:] = number / 2  # exact in bf16
        flat[8000:8024].view("<i8")[:] = 7_000_000_001 * number
        upstream.publisher.publish(POLICY, flat, Version(1, number))
        for reader in readers:

            def adopted(reader: Subscriber = reader) -> bool:
                relay.passed.turn()
                found = reader.subscriber.adopt(reader.out, reader.have)
                reader.have = found or reader.have
                return reader.have == Version(1, number)  # noqa: B023 - used before the next number

            until(adopted)
            assert (reader.out == flat).all()
            assert reader.subscriber.same_node is False, "the memory is not the learner's"
            assert reader.subscriber.requests == 0
    for _ in range(20):
        assert not relay.passed.turn()
    until(lambda: upstream.counters["weights_answered"] >= 3)  # an answer is counted once it is on its way
    assert upstream.counters["weights_answered"] == relay.counters[f"weights_relayed.{POLICY}"] == 3
    assert relay.counters["weights_answered"] == 0


def test_the_next_incarnation_of_a_learner_goes_on_through_the_same_mailbox(scene: Scene) -> None:
    first = Publisher(None)
    relay = Weights(scene.memory / f"{PREFIX}{RUN}-relay-0.1-{POLICY}.weights", plan_of())
    reader = Subscriber()
    for thing in (relay, reader):
        scene.stack.callback(thing.close)
    relay.passed.follow(first.route)
    reader.subscriber.route(relay.route(first.route))
    first.publish(5)
    until(lambda: relay.passed.turn() or reader.sync())
    until(lambda: reader.sync() or reader.have == Version(1, 5))
    first.close()
    listening = reader.subscriber.sockets
    second = Publisher(None, incarnation=2)
    scene.stack.callback(second.close)
    relay.passed.follow(second.route)
    reader.subscriber.route(relay.route(second.route))
    second.publish(6)
    until(lambda: relay.passed.turn() or reader.sync() or reader.have == Version(2, 6))
    until(lambda: reader.sync() or reader.have == Version(2, 6))
    assert reader.subscriber.sockets == listening, "its publisher is the same"


def test_the_mailbox_of_a_killed_relay_goes_with_its_last_reader(scene: Scene) -> None:
    upstream, reader = Publisher(None), Subscriber()
    relay = Weights(scene.memory / f"{PREFIX}{RUN}-relay-0.1-{POLICY}.weights", plan_of())
    for thing in (upstream, reader):
        scene.stack.callback(thing.close)
    relay.passed.follow(upstream.route)
    reader.subscriber.route(relay.route(upstream.route))
    upstream.publish(1)
    until(lambda: relay.passed.turn() is None or reader.sync())
    for entry in relay.publisher._policies.values():  # as kill -9 does
        entry.mailbox.close()
    relay.publisher._policies.clear()
    relay.close()
    assert len(list(files())) == 1
    reader.subscriber.route(upstream.route)
    assert list(files()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '[{"name":"a"}]',
        '[{"name":"a","dtype":"O","shape":[1],"offset":0}]',
        '[{"name":"a","dtype":"<f4","shape":[-1],"offset":0}]',
        '[{"name":"a","dtype":"<f4","shape":[1],"offset":4}]',
        '[{"name":"a","dtype":"<f4","shape":[true],"offset":0}]',
        '[{"name":"a","dtype":"<f4","shape":[99],"offset":0},{"name":"b","dtype":"<f4","shape":[1],"offset":64}]',
        '[{"name": "a", "dtype": "<f4", "shape": [1], "offset": 0}]',
    ],
)
def test_a_manifest_that_is_none_is_refused(text: str) -> None:
    with raises(WireError, "manifest_malformed"):
        Manifest.parse(text)
    assert Manifest.parse(MIXED.text).hash == MIXED.hash
    assert Manifest.parse(json.dumps([], separators=(",", ":"))).nbytes == 0


def route(policy: str, node: str) -> Route:
    """A learner's own."""
    ways = {"experience": "e", "weights": "w", "acknowledgements": "k"}
    return Route.model_validate({"policy": policy, "learner": "l", "incarnation": 1, "node": node, **ways})


def test_a_route_leads_by_the_relay_of_the_learners_node_and_back_by_that_of_ones_own() -> None:
    near, far = route("a", "here"), route("b", "there")
    offers = {
        "here": [
            near.model_copy(update={"experience": "E1", "experience_relay": 3}),
            far.model_copy(update={"weights": "W1", "weights_relay": 3}),
        ],
        "there": [
            far.model_copy(update={"experience": "E2", "experience_relay": 7}),
            near.model_copy(update={"weights": "W2", "weights_relay": 7}),
        ],
    }
    routes = [near, far]
    here = route_via_relays(routes, offers, "here")
    assert here[0] == near, "on the learner's node everything goes straight"
    passed = far.model_copy(update={"experience": "E2", "experience_relay": 7, "weights": "W1", "weights_relay": 3})
    assert here[1] == passed
    assert here[1].acknowledgements == "k", "acknowledgements are the learner's own"
    assert route_via_relays(routes, offers, "") == routes, "whoever does not say where it is goes straight"
    assert route_via_relays(routes, {}, "here") == routes
    assert route_via_relays(routes, {"there": offers["there"]}, "elsewhere")[1].weights == "w"
    assert route_via_relays([route("a", "")], offers, "here") == [route("a", "")]


def test_a_node_has_one_relay_whose_next_one_waits_for_its_end(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    first, other = (admitted(members, join("relay", node, node=node)) for node in ("here", "there"))
    assert first.name != other.name
    assert refused(members, join("relay", "next", node="here")).retry
    members.expire(first.seen + first.lease + 1)
    again = admitted(members, join("relay", "next", node="here"))
    assert (again.name, again.incarnation) == (first.name, 2), "what the first one left is known by its name"


def test_a_dead_relays_routes_lead_past_it_at_the_end_of_its_lease(tmp_path: Path) -> None:
    members, found = members_of(tmp_path), {}
    for role, name, node in (
        ("learner", "learner", "there"),
        ("actor", "actor", "here"),
        ("relay", "relay", "there"),
        ("relay", "relay-2", "here"),
    ):
        found[name] = admitted(members, join(role, name, host="another", node=node))  # type: ignore[arg-type]
    own = route("a", "")
    offer = own.model_copy(update={"node": "there", "experience": "E", "experience_relay": 1})
    for role, routes in (("learner", [own]), ("relay", [offer])):
        member = found[role]
        heartbeat = Heartbeat(name=member.name, token=member.token, incarnation=1, state="relaying", routes=routes)
        assert members.heartbeat(heartbeat) is member
    assert [way.experience for way in members.routes(found["actor"])] == ["E"]
    assert members.routes(found["learner"]) == members.routes(found["relay-2"]) == [route("a", "there")]
    found["relay"].seen -= found["relay"].lease + 1
    assert members.expire(found["actor"].seen) == [found["relay"]]
    assert members.routes(found["actor"]) == [route("a", "there")]


def test_a_relay_without_use_is_refused_with_the_reason(tmp_path: Path) -> None:
    answer = refused(members_of(tmp_path, transport="tcp"), join("relay", "t", node="here"))
    assert kinds_in(answer.reason) == ["nothing_to_relay"]
    assert kinds_in(refused(members_of(tmp_path), join("relay", "t")).reason) == ["relay_without_node"]


def test_a_node_is_told_by_its_host_boot_and_memory_unless_it_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert node_name("rack-7") == "rack-7"
    assert node_name() == node_name()
    here = node_name()
    monkeypatch.setenv("ROOKERY_MEMORY", "/proc")  # another device
    assert node_name() != here
    monkeypatch.setattr("platform.node", lambda: "_odd host/name_")
    assert Join(role="actor", token="t", release="r", host="h", pid=1, node=node_name()).node
    with raises(ConfigurationError, "node_name_malformed", value="a b"):
        node_name("a b")


def test_a_ledger_of_an_actor_is_one_whatever_way_its_segments_came(scene: Scene, tmp_path: Path) -> None:
    """Straight first, then by relay, then straight again: each number is used once."""
    plan = plan_of()
    relay, learner, actor = scene.relay(plan), scene.learner(plan, ledger=tmp_path / "l"), scene.actor(plan)
    way = relay.serve(learner)
    for turn, (here, inline) in enumerate([(learner.route, True), (way, True), (learner.route, True)]):
        actor.sender.route(here, inline)
        actor.write(1)
        shipped(relay, learner, actor, count=(turn + 1) * BLOCK)
    assert [number for _, _, number in learner.got] == list(range(1, 3 * BLOCK + 1))
    assert ReceiptLog(tmp_path / "l").entries() == {("actor-0", 1): 3 * BLOCK}
