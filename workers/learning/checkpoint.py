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

__all__ = ["FORMAT", "load", "load_newest", "save", "steps"]

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
    for old_step in steps(folder)[:-keep]:
        shutil.rmtree(folder / str(old_step))
    _remove_unfinished(folder)
    return final


def load_newest(
    folder: Path, weights_hash: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]] | None:
    """(weights, optimizer, manifest) of the newest checkpoint, or None; ConfigurationError if it does not fit."""
    saved = steps(folder)
    if not saved:
        return None
    path = folder / str(saved[-1])
    weights, manifest = load(path)
    optimizer = _tensors(path, "optimizer")
    if manifest.get("weights_hash") != weights_hash:
        raise ConfigurationError(f"checkpoint {path} is of another network; use the configuration it was trained with")
    return weights, optimizer, manifest


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(weights, manifest) of the checkpoint in the folder `path`; ConfigurationError if it cannot be read."""
    weights = _tensors(path, "weights")
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except (OSError, ValueError) as fault:
        raise _unreadable(path, fault) from None
    if manifest.get("format") != FORMAT:
        raise ConfigurationError(
            f"checkpoint {path} has format {manifest.get('format')!r}, this release reads {FORMAT}; "
            "use the release that wrote it"
        )
    return weights, manifest


def steps(folder: Path) -> list[int]:
    """Train steps of the checkpoints in `folder`, the newest last."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _tensors(path: Path, name: str) -> dict[str, torch.Tensor]:
    try:
        return load_file(path / f"{name}.safetensors")
    except (OSError, SafetensorError) as fault:
        raise _unreadable(path, fault) from None


def _unreadable(path: Path, fault: Exception) -> ConfigurationError:
    return ConfigurationError(f"checkpoint {path} cannot be read ({fault}); remove this folder to use an older one")


def _remove_unfinished(folder: Path) -> None:
    """What a save that was killed left behind; a policy has one writer."""
    for path in folder.glob(".*.*"):
        shutil.rmtree(path)


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each on its own storage, on the CPU: weights are views of one flat buffer, which the format does not take."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
