"""Who may talk to whom: CURVE keys by role, and an authenticator that lets each in only where it has a right to be.

A folder of keys (`rookery keys new DIR`; `run-keys` in the folder of a run that made its own) holds `<role>.public` for
every role and `<role>.secret` for those that run on this machine. A socket that is bound proves to be its role's and
asks whoever connects for a key it knows. In flows: key files, or what a connect string carries. Out flow: sockets that
are encrypted and authenticated before the first message.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import tempfile
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from protocol.errors import ConfigurationError
from protocol.refusal_log import RefusalLog

ROLES = ("coordinator", "learner", "actor", "relay", "evaluator", "supervisor", "simulator")
RIGHTS: dict[str, frozenset[str]] = {
    "control": frozenset({"learner", "actor", "relay", "evaluator", "supervisor"}),
    "experience": frozenset({"actor", "relay"}),
    "weights": frozenset({"actor", "learner", "relay", "evaluator", "supervisor"}),
    "acknowledgements": frozenset({"actor", "relay"}),
    "simulators": frozenset({"simulator"}),
}
"""Which roles may connect to which kind of socket. Nobody connects to publish weights: only a socket that proves to be
the learner's (or a relay's) is ever listened to."""
_ZAP = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks, by RFC 27."""
_READ_AGAIN = 1.0
"""Seconds after which keys are read again although their files are the same: one may not have been readable."""
_Z85_KEY, _RAW_KEY = 40, 32
_OWN, _RENEWABLE = "run-keys", ("simulator",)
"""Where a run's own keys lie in its folder, and those of which its processes, which read them once, need no new one."""
_CARRIED = ("actor.public", "simulator.public", "simulator.secret")
"""The keys in a connect string, in their order, as bytes in base64 (RFC 4648, section 5)."""
_PRIVATE, _LENT = 0o600, 0o640


@dataclass(frozen=True)
class Keys:
    """One role's own pair and the public keys of all roles, in Z85."""

    role: str
    public: bytes
    secret: bytes = field(repr=False)
    known: Mapping[str, bytes]
    folder: Path | None = None
    """Where `known` was read, and is read again where a file is another when it is asked who may come in: keys may be
    revoked meanwhile."""

    @classmethod
    def load(cls, folder: Path, role: str) -> Keys:
        """Reads `folder`, or the keys that the run in it made; ConfigurationError if a key is missing, is none, or
        could be read, or put there, by others."""
        folder = _place(folder)
        if folder.exists() and folder.stat().st_uid not in (0, os.geteuid()):
            raise ConfigurationError("keys_of_another_user", file=folder)
        known: dict[str, bytes] = {other: _read(folder / f"{other}.public") for other in ROLES}
        path = folder / f"{role}.secret"
        secret = _read(path)
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        lent = status.st_uid == 0 and os.geteuid() != 0  # by root to our group: how Kubernetes mounts a Secret
        if mode & ~(_LENT if lent else _PRIVATE):
            raise ConfigurationError("key_file_readable_by_others", file=path, mode=mode)
        if zmq.curve_public(secret) != known[role]:
            raise ConfigurationError("key_pair_mismatch", file=path, role=role)
        return cls(role, known[role], secret, known, folder.absolute())

    @classmethod
    def carried(cls, text: str) -> Keys:
        """A simulator's, from what a connect string has behind `?keys=`; ConfigurationError if they are none."""
        try:
            if re.fullmatch(r"[\w-]{128}", text, re.ASCII) is None:
                raise ValueError(len(text))
            raw = urlsafe_b64decode(text)
            keys = [z85.encode(raw[at : at + _RAW_KEY]) for at in range(0, len(raw), _RAW_KEY)]
            server, public, secret = keys
            if zmq.curve_public(secret) != public:
                raise ValueError(public)
        except ValueError:
            raise ConfigurationError("connect_string_malformed") from None
        return cls("simulator", public, secret, {"actor": server, "simulator": public})

    def files(self) -> dict[str, tuple[int, int, int]]:
        """By role, what is another once its key is, and is had much sooner than the key."""
        found = {}
        for role in ROLES if self.folder is not None else ():
            with suppress(OSError):  # it has none
                one = os.stat(f"{self.folder}/{role}.public")
                found[role] = one.st_ino, one.st_ctime_ns, one.st_size
        return found

    def known_now(self, before: Mapping[str, bytes], refusals: RefusalLog) -> Mapping[str, bytes]:
        """By role, as the folder says now: who has no file is known no more, who has one that cannot be read, or is
        half written, as `before`."""
        if self.folder is None:
            return self.known
        found = {}
        for role in ROLES:
            path = self.folder / f"{role}.public"
            try:
                found[role] = _read(path)
            except ConfigurationError as fault:
                refusals.tell("key_not_read", fault.kind, fault.coded, role=role)
                if role in before and (fault.kind == "key_file_malformed" or os.path.lexists(path)):
                    found[role] = before[role]
        return found

    def serve(self, socket: zmq.Socket[bytes], port: str) -> None:
        """Before `bind`: this socket proves to be our role's and lets in who may come to `port`."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.ZAP_DOMAIN, port.encode())

    def join(self, socket: zmq.Socket[bytes], server: str) -> None:
        """Before `connect`: this socket speaks to nobody but a `server`."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.known[server])
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)


class CurveContext(zmq.Context[zmq.Socket[bytes]]):
    """A context whose connections are all encrypted and authenticated with `keys`; see `protocol/transport/sockets.py`.

    From the first socket that is bound on, an authenticator answers ZeroMQ when it asks (ZAP, RFC 27) of a connection;
    messages then carry the role they came from as `User-Id`.
    """

    keys: Keys | None = None
    refusals: RefusalLog | None = None
    """Who was not let in."""
    _authenticator: _Authenticator | None = None

    @classmethod
    def make(cls, keys: Keys) -> CurveContext:
        """One without sockets."""
        context = cls(1)
        context.keys = keys
        context.refusals = RefusalLog()
        return context

    def guard(self, socket: zmq.Socket[bytes], port: str) -> None:
        """Before `bind`: `socket` is encrypted, and open to those only who have a right to `port`."""
        assert self.keys is not None
        assert self.refusals is not None
        if self._authenticator is None:
            self._authenticator = _Authenticator(self, self.keys, self.refusals)
            self._authenticator.start()
        self.keys.serve(socket, port)

    def destroy(self, linger: int | None = None) -> None:
        """Ends the authenticator and closes everything."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        super().destroy(linger)


class _Authenticator(threading.Thread):
    """Answers whether the role whose key somebody shows may come in at a port. pyzmq's own knows single keys alone, and
    takes several times as long for each, which a flood of strangers would take from whoever is at work here."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, refusals: RefusalLog) -> None:
        super().__init__(name="authenticator", daemon=True)
        self._keys, self._refusals, self._known = keys, refusals, keys.known
        self._files: object = None
        self._read_at = 0.0
        self._questions, self._end = context.socket(zmq.REP), context.socket(zmq.REQ)
        self._questions.bind(_ZAP)
        self._end.connect(_ZAP)

    def run(self) -> None:
        """Until `stop`."""
        while len(question := self._questions.recv_multipart()) > 1:
            self._questions.send_multipart(self._answer(*question))
        self._questions.close(linger=0)

    def stop(self) -> None:
        """Ends the thread."""
        self._end.send(b"")
        self.join()
        self._end.close(linger=0)

    def _answer(self, version: bytes, request: bytes, domain: bytes, host: bytes, *shown: bytes) -> list[bytes]:
        """To one question. Whose key is refused is told nothing: after a 400 ZeroMQ never comes again, after a 300 it
        does when the handshake's time has ended."""
        files, now = self._keys.files(), time.monotonic()
        if files != self._files or now > self._read_at + _READ_AGAIN:
            self._files, self._read_at = files, now
            self._known = self._keys.known_now(self._known, self._refusals)
        key, port = z85.encode(shown[-1]), domain.decode()
        role = next((role for role, known in self._known.items() if known == key), "")
        if role in RIGHTS.get(port, ()):
            return [version, request, b"200", b"OK", role.encode(), b""]
        kind = "no_right" if role else "unknown_key"
        reason = f"keys of role {role} are for other ports" if role else "its key is none of this run, or was revoked"
        self._refusals.tell("handshake_refused", kind, reason, port=port, host=host.decode())
        return [version, request, b"300", b"", b"", b""]


def new_keys(folder: Path) -> list[Path]:
    """Makes a pair of keys for every role; ConfigurationError if `folder` holds keys already."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.glob("*.secret")):
        raise ConfigurationError("keys_exist_already", file=folder)
    return [path for role in ROLES for path in _make_pair(folder, role)]


def _place(folder: Path) -> Path:
    return own if (own := folder / _OWN).is_dir() else folder


def run_keys(folder: Path) -> Path:
    """Those of the run in `folder`, in a folder of its user's alone; made where there are none yet. ConfigurationError
    where others could read or change them."""
    keys = folder / _OWN
    if not keys.is_symlink() and not keys.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{_OWN}-", dir=folder))
        new_keys(aside)
        try:
            aside.rename(keys)
        except OSError:  # another has made some meanwhile
            shutil.rmtree(aside)
    status = keys.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigurationError("run_keys_not_private", file=keys)
    return keys


def connect_string(address: str, folder: Path) -> str:
    """`address` of an actor with all that a simulator needs to be let in there, where the keys lie in `folder`."""
    raw = b"".join(z85.decode(_read(_place(folder) / name)) for name in _CARRIED)
    return f"{address}?keys={urlsafe_b64encode(raw).decode()}"


def revoke(folder: Path, role: str) -> list[Path]:
    """A new pair for `role` in the place of the old one, whose holders are let in no more; ConfigurationError if
    `folder` holds none, or is of a run whose processes would miss it. The public one first: whoever reads between the
    two is refused, and not let in."""
    folder = _place(folder)
    _read(folder / f"{role}.public")
    if folder.name == _OWN and role not in _RENEWABLE:
        raise ConfigurationError("run_key_not_renewable", role=role, choices=[*_RENEWABLE], file=folder)
    return _make_pair(folder, role)


def _make_pair(folder: Path, role: str) -> list[Path]:
    public, secret = zmq.curve_keypair()
    written = []
    for kind, key, mode in (("public", public, 0o644), ("secret", secret, _PRIVATE)):
        path, aside = folder / f"{role}.{kind}", folder / f".{role}.{kind}"
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key + b"\n")
        written.append(aside.rename(path))
    return written


def _read(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as fault:
        raise ConfigurationError(
            "key_file_unreadable", file=path, reason=fault.strerror, remedy=_remedy(path.parent)
        ) from None
    try:
        whole = len(key) == _Z85_KEY and len(z85.decode(key)) == 32
    except (ValueError, KeyError, IndexError, struct.error):  # a group of five may say more than four bytes hold
        whole = False
    if not whole:
        raise ConfigurationError("key_file_malformed", file=path, remedy=_remedy(path.parent))
    return key


def _remedy(folder: Path) -> str:
    """What to do where a key in `folder` is missing or damaged."""
    if folder.name == _OWN:
        return f"stop the run, remove {folder} and start it again: it makes others"
    if any(folder.glob("*.secret")):  # where there are some, no others are made
        return "copy it from where these keys were made, or make others in another folder"
    return f"make keys with `rookery keys new {folder}` or copy them there"
