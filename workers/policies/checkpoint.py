"""Checkpoints of one policy on disk: safetensors and a JSON manifest, written aside and renamed, never half-visible.

`checkpoints/<policy>/<train step>/{weights.safetensors, optimizer.safetensors, manifest.json}`, and on replay
`replay.safetensors`. In flow: a `Checkpoint` in memory. Out flow: the same, from any folder that holds one; whatever is
wrong with a folder is told in one sentence.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from protocol import RELEASE
from protocol.errors import ConfigurationError
from workers.runtime.files import sync

FORMAT = 2
"""2 has `mean_return`, `replaced` and, on replay, a file of its own."""
_OLDEST = 1
_MANIFEST_BYTES = 16 * 2**20
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class CheckpointManifest(BaseModel):
    """What a checkpoint says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    format: Annotated[int, Field(ge=_OLDEST, le=FORMAT)] = FORMAT
    release: str = RELEASE
    step: _Count
    policy: str
    version: Annotated[int, Field(ge=0, lt=2**40)]
    incarnation: Annotated[int, Field(ge=0, lt=2**24)]
    train_steps: _Count
    rows: _Count
    """Rows received by then, by all incarnations."""
    weights_hash: str
    mean_return: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Of the newest hundred episodes or so that had ended by then, or of an evaluation that had just ended if that is
    more; None where too few had."""
    replaced: _Count = 0
    """The number of the command of the run's roster that gave the policy the weights it has learned from; 0: none."""
    agent: dict[str, Any]
    common: dict[str, Any] | None
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a resume needs, of one moment and in host memory."""

    manifest: CheckpointManifest
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    """Moments, train steps and the random state of the update."""
    replay: dict[str, NDArray] = field(default_factory=dict)
    """Of the replay mode (workers/learning/buffers/replay_checkpoint.py); empty on streams."""


def to_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on storages of their own, on the CPU: weights are views of one flat buffer, which goes on changing and
    which the format does not take."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def save(folder: Path, checkpoint: Checkpoint, keep: int, every: int | None = None) -> Path:
    """Writes `checkpoint` under `folder` and removes all but the newest `keep`, the best, and the first of each `every`
    train steps; returns its folder."""
    step = checkpoint.manifest.step
    final, aside, old = folder / str(step), folder / f".{step}.new", folder / f".{step}.old"
    _remove_unfinished(folder)
    aside.mkdir(parents=True)
    save_file(checkpoint.weights, aside / "weights.safetensors")
    save_file(checkpoint.optimizer, aside / "optimizer.safetensors")
    if checkpoint.replay:
        save_arrays(checkpoint.replay, aside / "replay.safetensors")
    (aside / "manifest.json").write_text(json.dumps(checkpoint.manifest.model_dump(), indent=2) + "\n")
    for written in (*aside.iterdir(), aside):
        sync(written)
    if final.exists():
        final.rename(old)
    aside.rename(final)
    sync(folder)
    steps = list_steps(folder)
    firsts = {other // every: other for other in reversed(steps)} if every else {}
    kept = {*steps[-keep:], best(folder), *firsts.values()}
    for other in steps:
        if other not in kept:
            shutil.rmtree(folder / str(other))
    _remove_unfinished(folder)
    return final


def load_newest(folder: Path, weights_hash: str) -> Checkpoint | None:
    """The newest checkpoint, or None; ConfigurationError if it does not fit."""
    saved = list_steps(folder)
    if not saved:
        return None
    path = folder / str(saved[-1])
    found = load(path)
    if found.manifest.weights_hash != weights_hash:
        raise ConfigurationError("checkpoint_of_other_network", file=path)
    return found


def load(path: Path) -> Checkpoint:
    """The checkpoint in the folder `path`; ConfigurationError if it cannot be read, or holds what is no number."""
    manifest = _manifest(path)
    weights, optimizer = (_read(path, f"{name}.safetensors", load_file) for name in ("weights", "optimizer"))
    for name, tensor in (weights | optimizer).items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ConfigurationError("checkpoint_not_finite", file=path, field=name)
    replay: dict[str, NDArray] = {}
    if os.path.lexists(path / "replay.safetensors"):
        replay = _read(path, "replay.safetensors", load_arrays)
    return Checkpoint(manifest, weights, optimizer, replay)


def list_steps(folder: Path) -> list[int]:
    """Train steps of the checkpoints in `folder`, the newest last."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _STEP.fullmatch(path.name))


def best(folder: Path) -> int | None:
    """The train step of the checkpoint with the greatest mean return, of equal ones the newest; None if none says."""
    earned: list[tuple[float, int]] = []
    for step in list_steps(folder):
        try:
            told = _manifest(folder / str(step)).mean_return
        except ConfigurationError:  # whoever loads it is told
            continue
        if told is not None:
            earned.append((told, step))
    return max(earned)[1] if earned else None


def _manifest(path: Path) -> CheckpointManifest:
    told = _read(path, "manifest.json", _json)
    found = told.get("format") if isinstance(told, dict) else None
    if isinstance(found, int) and not _OLDEST <= found <= FORMAT:
        raise ConfigurationError("checkpoint_format_unknown", file=path, value=found, oldest=_OLDEST, newest=FORMAT)
    try:
        return CheckpointManifest.model_validate(told)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _unreadable(path, f"manifest.json: {place} {first['msg'].lower()}") from None


def _json(file: Path) -> Any:
    if file.stat().st_size > _MANIFEST_BYTES:
        raise ValueError(f"more than {_MANIFEST_BYTES} bytes")
    return json.loads(file.read_text())


def _read(path: Path, name: str, read: Callable[[Path], Any]) -> Any:
    """What `read` makes of the file `name`, which must be a plain one: a link may lead anywhere, a pipe never ends."""
    file = path / name
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise ValueError("it is no plain file")
        return read(file)
    except (OSError, ValueError, RecursionError, SafetensorError) as fault:
        raise _unreadable(path, f"{name}: {fault}") from None


def _unreadable(path: Path, why: str) -> ConfigurationError:
    said = " ".join(why.split())
    return ConfigurationError("checkpoint_unreadable", file=path, reason=said)


def _remove_unfinished(folder: Path) -> None:
    """What a save that was killed left behind; a policy has one writer."""
    for path in folder.glob(".*.*"):
        shutil.rmtree(path)
