"""What dead actors left in memory: rings nobody told this learner of, and finished segments nobody announced.

In flows: the files of a run, the rings of actors that are members no more. Out flow: records of whole segments.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.intake import check_final_rows, read_records
from protocol.layout import Layout
from protocol.memory import PREFIX, files
from protocol.ring import FINISHED, Ring

__all__ = ["finished_beyond", "rings_left_behind"]


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
