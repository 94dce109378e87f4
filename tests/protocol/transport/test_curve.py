"""Keys by role: who may connect where, over real sockets, and what is told when a key is wrong."""

from __future__ import annotations

import os
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import zmq

from protocol.errors import ConfigurationError
from protocol.refusal_log import RefusalLog
from protocol.transport import sockets
from protocol.transport.curve import RIGHTS, ROLES, CurveContext, Keys, connect_string, new_keys, revoke, run_keys
from protocol.transport.sockets import Ports, connect
from tests.faults import raises
from tests.protocol.test_specification import table_after
from tests.tools import skip_or_fail
from tests.waiting import until


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("keys") / "new"
    new_keys(made)
    return made


def test_secrets_are_readable_by_their_owner_alone(folder):
    for role in ROLES:
        assert stat.S_IMODE((folder / f"{role}.secret").stat().st_mode) == 0o600


def test_keys_are_never_overwritten(folder):
    before = (folder / "learner.secret").read_bytes()
    with raises(ConfigurationError, "keys_exist_already", file=folder):
        new_keys(folder)
    assert (folder / "learner.secret").read_bytes() == before


def test_a_secret_is_not_shown_when_keys_are_printed(folder):
    keys = Keys.load(folder, "actor")
    assert keys.secret.decode() not in repr(keys)


def spoil(folder, tmp_path, name, content, mode=0o600):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / path.name).chmod(0o600)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("actor.secret", None, "key_file_unreadable"),
        ("learner.public", None, "key_file_unreadable"),
        ("actor.secret", b"short", "key_file_malformed"),
        ("actor.public", b"\xff" * 40, "key_file_malformed"),
        ("actor.public", b"#" * 40, "key_file_malformed"),
    ],
)
def test_a_missing_or_damaged_key_is_one_sentence(folder, tmp_path, name, content, kind):
    spoil(folder, tmp_path, name, content)
    with raises(ConfigurationError, kind, file=tmp_path / name):
        Keys.load(tmp_path, "actor")


@pytest.mark.parametrize("there", ["none", "some", "some of a run"])
def test_whoever_lacks_a_key_is_told_to_make_keys_where_they_can_be_made(folder, tmp_path, there):
    place = tmp_path / ("run-keys" if there == "some of a run" else "keys")
    place.mkdir()
    if there != "none":
        spoil(folder, place, "actor.public", None)
    with raises(ConfigurationError, "key_file_unreadable") as caught:
        Keys.load(place, "actor")
    assert isinstance(caught.value, ConfigurationError)
    if f"rookery keys new {place}`" in caught.value.facts["remedy"]:
        new_keys(place)
    else:
        with raises(ConfigurationError, "keys_exist_already"):
            new_keys(place)


def test_keys_that_another_user_could_have_put_there_are_refused(folder, tmp_path):
    if os.geteuid():
        skip_or_fail("needs root")
    spoil(folder, tmp_path, "actor.secret", (folder / "actor.secret").read_bytes())
    assert Keys.load(tmp_path, "actor").role == "actor"
    os.chown(tmp_path, 10_001, -1)
    with raises(ConfigurationError, "keys_of_another_user", file=tmp_path):
        Keys.load(tmp_path, "actor")


def test_a_secret_that_others_can_read_is_refused_with_the_command_that_mends_it(folder, tmp_path):
    spoil(folder, tmp_path, "actor.secret", (folder / "actor.secret").read_bytes(), 0o640)
    with raises(
        ConfigurationError, "key_file_readable_by_others", file=tmp_path / "actor.secret", mode=0o640
    ) as caught:
        Keys.load(tmp_path, "actor")
    assert "0640" in str(caught.value)


def test_a_secret_that_root_lends_to_our_group_is_taken_as_kubernetes_mounts_it(folder, tmp_path, monkeypatch):
    spoil(folder, tmp_path, "actor.secret", (folder / "actor.secret").read_bytes(), 0o640)
    if (tmp_path / "actor.secret").stat().st_uid:
        skip_or_fail("needs root")
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    assert Keys.load(tmp_path, "actor").role == "actor"
    (tmp_path / "actor.secret").chmod(0o644)
    with raises(ConfigurationError, "key_file_readable_by_others", mode=0o644):
        Keys.load(tmp_path, "actor")


def test_a_secret_of_another_pair_is_refused(folder, tmp_path):
    spoil(folder, tmp_path, "actor.secret", (folder / "learner.secret").read_bytes())
    with raises(ConfigurationError, "key_pair_mismatch", role="actor"):
        Keys.load(tmp_path, "actor")


def test_a_run_makes_its_keys_once_for_its_user_alone(tmp_path):
    made = run_keys(tmp_path)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    first = Keys.load(tmp_path, "simulator")
    assert run_keys(tmp_path) == made
    assert Keys.load(made, "simulator") == first
    revoke(tmp_path, "simulator")
    assert Keys.load(made, "simulator").public != first.public
    with raises(ConfigurationError, "run_key_not_renewable", role="learner"):  # its actors would not find it again
        revoke(tmp_path, "learner")
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


def test_two_that_make_keys_of_one_run_at_once_find_the_same(tmp_path):
    with ThreadPoolExecutor(8) as several:
        assert {*several.map(run_keys, [tmp_path] * 16)} == {tmp_path / "run-keys"}
    assert [path.name for path in tmp_path.iterdir()] == ["run-keys"]


def _readable(keys):
    keys.mkdir(mode=0o755)


def _elsewhere(keys):
    run_keys(keys.parent.parent)
    keys.symlink_to(keys.parent.parent / "run-keys")


@pytest.mark.parametrize("prepare", [_readable, _elsewhere, lambda keys: keys.write_text("")])
def test_keys_of_a_run_that_others_could_have_put_there_are_refused(tmp_path, prepare):
    (tmp_path / "run").mkdir()
    prepare(tmp_path / "run" / "run-keys")
    with raises(ConfigurationError, "run_keys_not_private", file=tmp_path / "run" / "run-keys"):
        run_keys(tmp_path / "run")


def test_a_key_that_is_being_written_is_as_good_as_before(tmp_path):
    new_keys(tmp_path / "keys")
    keys, refusals = Keys.load(tmp_path / "keys", "learner"), RefusalLog()
    path = tmp_path / "keys" / "actor.public"
    whole = path.read_bytes()
    path.write_bytes(whole[:17])
    assert keys.known_now(keys.known, refusals) == keys.known
    path.write_bytes(whole)
    assert keys.known_now({}, refusals) == keys.known
    path.unlink()
    assert "actor" not in keys.known_now(keys.known, refusals)


def test_a_connect_string_carries_what_a_simulator_needs(folder):
    address, carried = connect_string("tcp://127.0.0.1:5700", folder).split("?keys=")
    known, own = Keys.load(folder, "simulator"), Keys.carried(carried)
    assert address == "tcp://127.0.0.1:5700"
    assert (own.public, own.secret, own.known["actor"]) == (known.public, known.secret, known.known["actor"])
    assert own.role == "simulator"
    other = "B" if carried[60] == "A" else "A"
    for spoilt in ("", carried[:-4], carried + "AAAA", carried[:60] + other + carried[61:], carried[:-1] + "é"):
        with raises(ConfigurationError, "connect_string_malformed"):
            Keys.carried(spoilt)


@pytest.fixture
def context():
    """For those who connect."""
    made = zmq.Context(1)
    yield made
    made.destroy(linger=0)


@pytest.fixture
def guarded(folder):
    """A learner's."""
    made = CurveContext.make(Keys.load(folder, "learner"))
    yield made
    made.destroy(linger=0)


def says(guarded, context, guarded_port, prepare, patience=500):
    """The `User-Id` under which a message of a client arrives at `guarded_port`; None if none does in `patience` ms."""
    server, client = guarded.socket(zmq.PULL), context.socket(zmq.PUSH)
    guarded.guard(server, guarded_port)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    client.setsockopt(zmq.LINGER, 0)
    client.setsockopt(zmq.SNDTIMEO, patience)
    prepare(client)
    client.connect(f"tcp://127.0.0.1:{port}")
    with suppress(zmq.Again):  # who was refused already has nobody left to send to
        client.send(b"hello")
    arrived = server.poll(patience)
    try:
        return server.recv(copy=False).get("User-Id") if arrived else None
    finally:
        server.close(linger=0)
        client.close(linger=0)


def test_the_rights_are_those_of_the_specification_and_no_others():
    """Beside these, simulators connect to a port of their own and to no other."""
    said = {port: set(who.split(";")[0].split(", ")) for port, _, who in table_after("## Threats")}
    assert said | {"simulators": {"simulator"}} == RIGHTS


@pytest.mark.parametrize("guarded_port", sorted(RIGHTS))
def test_each_port_opens_for_the_roles_with_a_right_and_for_nobody_else(guarded, context, folder, guarded_port):
    for role in ("actor", "simulator", "learner"):
        keys = Keys.load(folder, role)
        allowed = role in RIGHTS[guarded_port]
        patience = 10_000 if allowed else 300
        found = says(guarded, context, guarded_port, lambda client, keys=keys: keys.join(client, "learner"), patience)
        assert found == (role if allowed else None)
    assert guarded.refusals.counters()["refusals.handshake_refused.no_right"] >= 1


def test_a_stranger_and_a_peer_without_keys_do_not_get_in(guarded, context, folder, tmp_path):
    server = guarded.keys
    new_keys(tmp_path / "theirs")
    (tmp_path / "theirs" / "learner.public").write_bytes((folder / "learner.public").read_bytes())
    theirs = tmp_path / "theirs"
    stranger = Keys("actor", text(theirs / "actor.public"), text(theirs / "actor.secret"), {"learner": server.public})
    assert says(guarded, context, "experience", lambda client: stranger.join(client, "learner")) is None
    assert says(guarded, context, "experience", lambda client: None) is None


def test_a_revoked_key_opens_nothing_more_and_its_successor_does(context, tmp_path):
    """In a learner that lives on; other roles' keys are as good as before, and each refusal is counted."""
    new_keys(tmp_path / "keys")
    (tmp_path / "keys" / ".#actor.public").symlink_to("somebody.edits.it")
    guarded = CurveContext.make(Keys.load(tmp_path / "keys", "learner"))
    try:
        first = Keys.load(tmp_path / "keys", "actor")
        assert says(guarded, context, "experience", lambda client: first.join(client, "learner"), 10_000) == "actor"
        copied, other = (Keys.load(tmp_path / "keys", role) for role in ("actor", "relay"))
        written = revoke(tmp_path / "keys", "actor")
        assert [stat.S_IMODE(path.stat().st_mode) for path in written] == [0o644, 0o600]
        assert says(guarded, context, "experience", lambda client: copied.join(client, "learner")) is None
        assert says(guarded, context, "experience", lambda client: other.join(client, "learner"), 10_000) == "relay"
        renewed = Keys.load(tmp_path / "keys", "actor")
        assert says(guarded, context, "experience", lambda client: renewed.join(client, "learner"), 10_000) == "actor"
        (tmp_path / "keys" / "actor.public").unlink()  # who has no file is as well let in no more
        assert says(guarded, context, "experience", lambda client: renewed.join(client, "learner")) is None
        assert guarded.refusals is not None
        found = guarded.refusals.counters()
        assert found["refusals.handshake_refused.unknown_key"] >= 2
        assert found["refusals.key_not_read.key_file_unreadable"] >= 1
        with raises(ConfigurationError, "key_file_unreadable"):
            revoke(tmp_path / "keys", "actor")
    finally:
        guarded.destroy(linger=0)


def test_who_was_refused_comes_in_once_its_key_is_there(tmp_path, monkeypatch):
    """Whatever kind of socket, and though nobody makes it anew."""
    monkeypatch.setattr(sockets, "_DEAD_AFTER", 300)  # milliseconds that a handshake may take
    keys, aside = tmp_path / "keys", tmp_path / "actor.public"
    new_keys(keys)
    guarded, actor = (CurveContext.make(Keys.load(keys, role)) for role in ("learner", "actor"))
    ports = Ports(guarded, "127.0.0.1", 0)
    (keys / "actor.public").rename(aside)
    try:
        addresses = ports.bind({1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB})
        kinds = {1: zmq.PUSH, 2: zmq.SUB, 3: zmq.SUB}
        clients = {at: connect(actor, kind, addresses[at]) for at, kind in kinds.items()}
        clients[1].send(b"segments")
        for at in (2, 3):
            clients[at].setsockopt(zmq.SUBSCRIBE, b"topic/")
        refusals = guarded.refusals
        assert refusals is not None
        until(lambda: refusals.total >= 2 * len(kinds), what="each is refused")
        assert not any(ports.sockets[at].poll(0) for at in kinds)
        aside.rename(keys / "actor.public")
        for at, client in clients.items():
            while not ports.sockets[at].poll(20):
                client.poll(0)  # who subscribes says so again when it looks
    finally:
        actor.destroy(linger=0)
        ports.close()
        guarded.destroy(linger=0)


def test_an_open_connection_ends_with_its_key(tmp_path):
    """Who holds the revoked key is hung up on and stays outside; another role connects anew by itself."""
    if sys.platform != "linux":
        skip_or_fail("connections are not seen")
    keys = tmp_path / "keys"
    new_keys(keys)
    guarded = CurveContext.make(Keys.load(keys, "learner"))
    ports = Ports(guarded, "127.0.0.1", 0)
    clients = [CurveContext.make(Keys.load(keys, role)) for role in ("actor", "relay")]
    try:
        address = ports.bind({1: zmq.PULL}, bytes_waiting={1: (2**20, 2**20)})[1]
        bound, (actor, relay) = ports.sockets[1], [connect(one, zmq.PUSH, address, queue=False) for one in clients]

        def arrives(socket, patience):
            while bound.poll(0):
                bound.recv()
            end = time.monotonic() + patience
            while time.monotonic() < end:
                with suppress(zmq.Again):
                    socket.send(b"x", zmq.NOBLOCK)
                if bound.poll(50):
                    return True
            return False

        assert arrives(actor, 20)
        assert arrives(relay, 20)
        revoke(keys, "actor")
        until(lambda: ports.guard.cut >= 2, what="both are hung up on")
        assert arrives(relay, 20)
        assert not arrives(actor, 1)
    finally:
        for one in clients:
            one.destroy(linger=0)
        ports.close()
        guarded.destroy(linger=0)


def text(path):
    return path.read_bytes().strip()


def test_a_worker_does_not_talk_to_a_server_that_only_pretends_to_be_the_learner(context, folder, tmp_path):
    """Threat: somebody takes the learner's address and publishes weights of their own."""
    new_keys(tmp_path / "theirs")
    pretender = Keys.load(tmp_path / "theirs", "learner")
    actor = Keys.load(folder, "actor")
    publisher, subscriber = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    pretender.serve(publisher, "weights")
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    actor.join(subscriber, "learner")
    subscriber.setsockopt(zmq.SUBSCRIBE, b"w/")
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    try:
        assert not publisher.poll(500)  # not even the subscription comes through
    finally:
        publisher.close(linger=0)
        subscriber.close(linger=0)
