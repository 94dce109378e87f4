"""Recorded segments, read from the folder that a run with `policy.record` wrote. Nothing in it is believed unchecked.

In flow: files (workers/learning/datasets/dataset_manifest.py). Out flow: a stretch of rows for each segment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protocol.errors import ConfigurationError, WireError
from protocol.experience.layout import Layout
from protocol.experience.validation import check_final_rows
from workers.learning.datasets.dataset_manifest import ACTOR, FILES, MANIFEST, RECORDS, read_manifest
from workers.learning.datasets.trajectory import Trajectory

_NAMES = {np.dtype(kind): name for kind, name in zip(
    ("?", "u1", "i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"),
    ("BOOL", "U8", "I8", "I16", "I32", "I64", "U16", "U32", "U64", "F16", "F32", "F64"),
    strict=True,
)}  # fmt: skip
"""What the files call dtypes."""
Key = tuple[str, int, int]
"""Actor, incarnation, number."""


class SegmentFile(NamedTuple):
    """What a file holds: n segments."""

    columns: dict[str, NDArray]
    records: dict[str, NDArray]
    """`RECORDS` -> [n]"""
    actors: list[tuple[str, int]]


class RecordedDataset:
    """The dataset in `path`, or in its folder called `policy`. A segment that is in it twice, as after the death of the
    learner that recorded it, is read once."""

    def __init__(self, path: Path, policy: str) -> None:
        folder = path if (path / MANIFEST).is_file() else path / policy
        if not (folder / MANIFEST).is_file():
            raise ConfigurationError("policy_not_recorded", file=path, policy=policy, key="policy.dataset.path")
        self.name, self._files = str(folder), sorted(folder.glob(FILES))
        self._manifest, self.layout = read_manifest(folder)
        self.agent = self._manifest.agent
        self._first: dict[Key, tuple[str, int]] = {}
        """In which file and where each segment is met first."""

    def lengths(self) -> list[int]:
        """Rows of each segment."""
        found: list[int] = []
        for file in self._files:
            segments = read_segments(file, self.layout, columns=False)
            for i, key in enumerate(_keys(segments)):
                if self._first.setdefault(key, (file.name, i)) == (file.name, i):
                    found.append(int(segments.records["record.valid"][i]))
        return found

    def stretches(self) -> Iterator[Trajectory]:
        """Each segment."""
        seen = [field.name for field in self.layout.fields if field.per == "row" and field.name != "version"]
        finals = [f.name for f in self.layout.fields if f.name.startswith("final_") and f.name != "final_row"]
        for file in self._files:
            segments = read_segments(file, self.layout)
            columns, records = segments.columns, segments.records
            for i, key in enumerate(_keys(segments)):
                if self._first.get(key) != (file.name, i):
                    continue
                valid, before = int(records["record.valid"][i]), int(records["record.before"][i])
                rows = slice(self.layout.before - before, self.layout.before + valid + 1)
                used = (columns["final_row"][i] >= 0) & (columns["final_row"][i] < valid)
                yield Trajectory(
                    *key[:2],
                    int(records["record.stream"][i]),
                    int(records["record.stream_sequence"][i]),
                    before,
                    valid,
                    {name: columns[name][i, rows] for name in seen},
                    columns["final_row"][i][used].astype(np.int64),
                    {name: columns[name][i][used] for name in finals},
                )


def read_segments(path: Path, layout: Layout, columns: bool = True) -> SegmentFile:
    """The segments in a file, or without `columns` only what there is to say of them; ConfigurationError in one
    sentence unless everything in it is of the form that `layout` has."""
    try:
        with safe_open(path, framework="np") as file:
            told = file.metadata() or {}
            if told.get("layout") != layout.hash:
                raise ValueError(f"its layout is {told.get('layout')!r}, the manifest's {layout.hash!r}")
            forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
                name: (kind, ()) for name, kind in RECORDS.items()
            }
            forms |= {form.name: (form.dtype, form.shape) for form in layout.forms}
            n = _check_forms(file, forms)
            records = {name: file.get_tensor(name) for name in RECORDS}
            found = {form.name: file.get_tensor(form.name) for form in layout.forms} if columns else {}
        actors = [(str(name), int(incarnation)) for name, incarnation in json.loads(told["actors"])]
        _check(records, found, layout, len(actors))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError, WireError) as fault:
        raise ConfigurationError(
            "recorded_segments_unreadable", file=path, reason=" ".join(str(fault).split())
        ) from None
    assert n == len(records[ACTOR])
    return SegmentFile(found, records, actors)


def _check_forms(file: Any, forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> int:
    """How many segments there are; ValueError if a tensor is missing, too many, or of another form."""
    if set(file.keys()) != set(forms):
        raise ValueError(f"it holds {', '.join(sorted(set(file.keys()) ^ set(forms)))} against its layout")
    n = int(file.get_slice(ACTOR).get_shape()[0])
    for name, (dtype, shape) in forms.items():
        part = file.get_slice(name)
        if part.get_dtype() != _NAMES[dtype] or tuple(part.get_shape()) != (n, *shape):
            raise ValueError(f"{name} is {part.get_dtype()}{part.get_shape()}, expected {_NAMES[dtype]}{[n, *shape]}")
    return n


def _check(records: dict[str, NDArray], columns: dict[str, NDArray], layout: Layout, actors: int) -> None:
    """ValueError or WireError for segments that no actor can have made."""
    valid, before, actor = (records[f"record.{name}"] for name in ("valid", "before", "actor"))
    if not len(valid):
        return
    if int(valid.min()) < 1 or int(valid.max()) > layout.length or int(before.max()) > layout.before:
        raise ValueError(f"a segment has {valid.min()} to {valid.max()} rows and {before.max()} of history")
    if int(actor.min()) < 0 or int(actor.max()) >= actors:
        raise ValueError("a segment is of an actor that it does not name")
    for name, column in columns.items():
        if column.dtype == np.bool_ and column.size and int(column.view(np.uint8).max()) > 1:
            raise ValueError(f"{name} has a truth value that is neither 0 nor 1")
    if columns:
        check_final_rows(columns["final_row"], layout)


def _keys(segments: SegmentFile) -> Iterator[Key]:
    for actor, number in zip(segments.records[ACTOR].tolist(), segments.records["record.number"].tolist(), strict=True):
        yield (*segments.actors[actor], number)
