"""Where the rows of a batch came from, and the file that keeps those which an update refused.

In flows: records of segments, and a refused batch. Out flow: `refused/<policy>-<train step>.safetensors` in the run's
folder, of the segments (or transitions) at fault, with their origins as JSON in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from protocol.weights.manifest import unpack
from workers.algorithms.common.batches import Learnable
from workers.learning.diagnostics.finite import non_finite_items
from workers.planning.policy_plan import TrainingPlan
from workers.runtime.seeds import seed_of

MOST_FILES = 8
"""Files of each policy; the first faults say most."""
_EPISODES = 1 << 24
_MOST_ITEMS = 64
"""Segments or transitions in a file."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Of a segment: the stream of which actor, which segment of it, made by which weights. In replay, `row` of it.

    `episode` counts those of the stream from 0 and is that of `row`, or of the segment's first row; None where the
    segment was overwritten before it was asked for.
    """

    actor: str
    incarnation: int
    stream: int
    stream_sequence: int
    number: int
    oldest: tuple[int, int]
    """(learner's incarnation, version) of the weights that made its first rows."""
    newest: tuple[int, int]
    episode: int | None
    row: int | None = None

    @classmethod
    def of(cls, actor: tuple[str, int], record: np.void, row: int | None = None, ends: int = 0) -> Origin:
        """From what was announced. `ends`: how many episodes ended in the segment before `row`; negative: unknown."""
        stream, sequence, number = (int(record[name]) for name in ("stream", "stream_sequence", "number"))
        oldest, newest = (unpack(int(record[name])) for name in ("version_min", "version_max"))
        return cls(
            *actor,
            stream,
            sequence,
            number,
            (oldest.incarnation, oldest.version),
            (newest.incarnation, newest.version),
            (int.from_bytes(record["episode"].tobytes(), "little") + ends) % _EPISODES if ends >= 0 else None,
            row,
        )


def origin_fields(origin: Origin, plan: TrainingPlan, seed: int) -> dict[str, int]:
    """Which world a row is from: what the actor's environment was reset with in a run of `seed`, and in it the number
    of the agent, its copy, and its place where the agent stands for many."""
    return {
        "environment_seed": seed_of(seed, "environment", origin.actor, origin.incarnation),
        "agent": plan.agents[origin.stream // (plan.copies * plan.agents_per_copy)],
        "copy": origin.stream // plan.agents_per_copy % plan.copies,
        "place": origin.stream % plan.agents_per_copy,
    }


def save_refused(
    folder: Path,
    policy: str,
    step: int,
    batch: Learnable,
    origins: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> Path | None:
    """Writes what is at fault in `batch` (64 items at most, all alike where none stands out) to `folder`; None where
    there are enough files of `policy`, or one of this step."""
    path = folder / f"{policy}-{step}.safetensors"
    if path.exists() or len(list(folder.glob(f"{policy}-*.safetensors"))) >= MOST_FILES:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    broken = torch.stack([rows.cpu() for rows in non_finite_items(batch).values()]).any(0)
    chosen = broken.nonzero()[:, 0] if broken.any() else torch.arange(len(broken))
    chosen = chosen[:_MOST_ITEMS]
    columns = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: column.cpu()[chosen].contiguous() for name, column in columns.items() if column is not None}
    told = [dict(origins[i]) for i in chosen.tolist()] if origins else []
    aside = path.with_name(f".{path.name}")
    save_file(tensors, aside, {"facts": json.dumps(dict(facts)), "origins": json.dumps(told)})
    aside.rename(path)
    return path
