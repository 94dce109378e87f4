"""What dead actors left in memory: rings nobody told this learner of, and finished segments nobody announced.

In flows: the files of a run, the rings of actors that are members no more. Out flow: records of whole segments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Set
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.intake import check_final_rows, read_records
from protocol.layout import Layout
from protocol.memory import PREFIX, files
from protocol.ring import FINISHED, Ring

__all__ = ["Roll", "finished_beyond", "rings_left_behind"]


class Roll:
    """Who is a member, as far as is known, and whose rings are to be looked through because they are none any more:
    those of actors that this learner `concerns`."""

    def __init__(self, run: str, concerns: Callable[[str], bool] = lambda actor: True) -> None:
        self._run, self._concerns = run, concerns
        self._living: set[tuple[str, int]] = set()
        self._strangers: set[tuple[str, tuple[str, int]]] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._living

    def call(
        self, actors: Set[tuple[str, int]], attached: Mapping[str, Container[tuple[str, int]]]
    ) -> list[tuple[str, tuple[str, int], Path | None]]:
        """The members now, and the rings `attached` by policy; returns those to be looked through as (policy, (actor,
        incarnation), file), the file None for one that is attached.

        The ring of an actor that was never a member is taken for a dead one's when it is told twice: its actor was not
        just about to join.
        """
        lost, self._living = self._living - actors, set(actors)
        found: list[tuple[str, tuple[str, int], Path | None]] = []
        strangers = set()
        for policy, rings in attached.items():
            for key, path in rings_left_behind(self._run, policy, self._living, rings):
                if not self._concerns(key[0]):
                    continue
                strangers.add((policy, key))
                if (policy, key) in self._strangers or key in lost:
                    found.append((policy, key, path))
            found += [(policy, key, None) for key in lost if key in rings]
        self._strangers = strangers
        return found


def rings_left_behind(
    run: str, policy: str, living: Container[tuple[str, int]], attached: Container[tuple[str, int]]
) -> list[tuple[tuple[str, int], Path]]:
    """Rings of `policy` on this node as ((actor, incarnation), file) whose actor is not `living` and that are not
    `attached`: their actor died while no learner was there."""
    name = re.compile(re.escape(f"{PREFIX}{run}-") + r"(.+)\.(\d+)-" + re.escape(policy) + r"\.ring")
    found = []
    for path in files(run):
        match = name.fullmatch(path.name)
        if match is not None:
            key = (match[1], int(match[2]))
            if key not in living and key not in attached:
                found.append((key, path))
    return found


def finished_beyond(ring: Ring, number: int, layout: Layout) -> NDArray[np.void]:
    """Records of the whole segments in a dead actor's ring with numbers beyond `number`, in order, checked like all
    that arrives (WireError)."""
    table = ring.table.copy()
    table["slot"] = np.arange(ring.slots)  # nobody believes what a slot says of its own place
    records = table[(table["state"] == FINISHED) & (table["sequence"] % 2 == 0)]
    records = np.sort(records[records["number"] > number], order="number")
    if len(records):
        records = read_records(records.tobytes(), len(records), layout)
        if "final_row" in ring.columns:
            check_final_rows(ring.columns["final_row"][records["slot"]], layout)
    return records
