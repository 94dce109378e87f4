"""Seeds of everything that is drawn in a run, from the run's own."""

from __future__ import annotations

import hashlib


def seed_of(seed: int, *names: object) -> int:
    """A 63-bit seed for one purpose, from the run's seed and names; different names give unrelated seeds."""
    digest = hashlib.blake2b(repr((seed, *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
