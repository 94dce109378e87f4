"""Whose segments they are: a word that the coordinator alone can make, and whoever it told the run's secret can check.

In flow: an actor's name and incarnation, as welcomed; headers of segments. Out flow: the word; a WireError for a header
that somebody else made.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import blake2b

from protocol.errors import WireError
from protocol.messages.core import Segments

_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class ActorIdentity:
    """What an actor is to learners, as welcomed."""

    run: str
    name: str
    incarnation: int
    proof: str


def proof_of(secret: str, run: str, actor: str, incarnation: int) -> str:
    """What this incarnation puts into its messages: its number and a keyed BLAKE2b, of 8 bytes: nobody guesses it."""
    said = f"{run}/{actor}/{incarnation}".encode()
    return f"{incarnation}.{blake2b(said, digest_size=8, key=secret.encode()).hexdigest()}"


class ProofCheck:
    """Whether headers of segments are of incarnations that the coordinator has let in, or of an earlier one of the same
    name, whose segments its successor sends again. `secret`: as welcomed."""

    def __init__(self, secret: str, run: str) -> None:
        self._secret, self._run = secret, run
        self._known: set[tuple[str, int, str]] = set()
        """That were found right: of one actor they do not change."""

    def __call__(self, header: Segments) -> None:
        """WireError for one that somebody else made, or of another run."""
        if header.run != self._run:
            raise WireError("segments_of_other_run", value=header.run, expected=self._run)
        if self.holds(header):
            return
        number = header.proof.partition(".")[0]
        granted = int(number) if number.isascii() and number.isdecimal() and len(number) <= 8 else 0
        right = proof_of(self._secret, self._run, header.actor, granted)
        if header.incarnation > granted or not hmac.compare_digest(header.proof.encode(), right.encode()):
            raise WireError("segments_not_proven", peer=header.actor, incarnation=header.incarnation)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add((header.actor, header.incarnation, header.proof))

    def holds(self, header: Segments) -> bool:
        """Whether its proof was found right before."""
        return (header.actor, header.incarnation, header.proof) in self._known
