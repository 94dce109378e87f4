"""Checkpoints of one policy on disk: safetensors and a JSON manifest, written aside and renamed, never half-visible.

`checkpoints/<policy>/<train step>/{weights.safetensors, optimizer.safetensors, manifest.json}`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protocol import RELEASE
from protocol.errors import ConfigurationError

__all__ = ["FORMAT", "load_newest", "save"]

FORMAT = 1


def save(
    folder: Path,
    step: int,
    weights: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    facts: Mapping[str, Any],
    keep: int,
) -> Path:
    """Writes one checkpoint under `folder` and removes all but the newest `keep`; returns its folder."""
    final = folder / str(step)
    aside, old = folder / f".{step}.new", folder / f".{step}.old"
    _remove_unfinished(folder)
    aside.mkdir(parents=True)
    save_file(_plain(weights), aside / "weights.safetensors")
    save_file(_plain(optimizer), aside / "optimizer.safetensors")
    manifest = {"format": FORMAT, "release": RELEASE, "step": step, **facts}
    (aside / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    for file in aside.iterdir():
        _sync(file)
    if final.exists():
        final.rename(old)
    aside.rename(final)
    _sync(folder)
    for step in _steps(folder)[:-keep]:
        shutil.rmtree(folder / str(step))
    _remove_unfinished(folder)
    return final


def load_newest(
    folder: Path, weights_hash: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]] | None:
    """(weights, optimizer, manifest) of the newest checkpoint, or None; ConfigurationError if it does not fit."""
    steps = _steps(folder)
    if not steps:
        return None
    path = folder / str(steps[-1])
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        weights = load_file(path / "weights.safetensors")
        optimizer = load_file(path / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as fault:
        raise ConfigurationError(
            f"checkpoint {path} cannot be read ({fault}); remove this folder to use an older one"
        ) from None
    if manifest.get("format") != FORMAT:
        raise ConfigurationError(
            f"checkpoint {path} has format {manifest.get('format')!r}, this release reads {FORMAT}; "
            "use the release that wrote it"
        )
    if manifest.get("weights_hash") != weights_hash:
        raise ConfigurationError(f"checkpoint {path} is of another network; use the configuration it was trained with")
    return weights, optimizer, manifest


def _remove_unfinished(folder: Path) -> None:
    """What a save that was killed left behind; a policy has one writer."""
    for path in folder.glob(".*.*"):
        shutil.rmtree(path)


def _steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each on its own storage, on the CPU: weights are views of one flat buffer, which the format does not take."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
