"""The file of an exported policy: its weights as safetensors, and a JSON manifest in their header.

In flow: what a policy sees and does, how it is built, its weights, where they come from. Out flow: one file, from which
it acts again without the run that trained it. The same JSON lies beside the file, for people and other programs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from protocol.errors import ConfigurationError
from workers.policies.build import Policy, build, published_weights
from workers.policies.export.export_manifest import KEY, ExportManifest, parse_manifest
from workers.policies.tensors.flat_weights import flatten_


def acting_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Names and tensors (shared) of what acting needs: what is published, without what only learning needs."""
    flatten_(policy)
    idle = {
        name
        for name, parameter in policy.named_parameters()
        if not parameter.requires_grad or name.startswith("online.mixer.")
    }
    tensors = {**dict(policy.named_parameters()), **dict(policy.named_buffers())}
    return {e.name: tensors[e.name].detach() for e in published_weights(policy).entries if e.name not in idle}


def save_policy(path: Path, manifest: ExportManifest, policy: Policy) -> None:
    """Puts the file in place, whole, and its manifest beside it."""
    aside = path.with_name(f".{path.name}.new")
    aside.write_bytes(to_bytes(manifest, policy))
    os.replace(aside, path)
    write_beside(path, manifest)


def to_bytes(manifest: ExportManifest, policy: Policy) -> bytes:
    """What is in the file."""
    weights = {name: tensor.cpu().clone().contiguous() for name, tensor in acting_weights(policy).items()}
    return save(weights, {KEY: manifest.text()})


def write_beside(path: Path, manifest: ExportManifest) -> None:
    """The manifest as a file of its own."""
    path.with_suffix(".json").write_text(manifest.text())


def load_policy(path: Path, code: Set[str] = frozenset()) -> tuple[ExportManifest, Policy]:
    """What `save_policy` wrote, and the policy with its weights; ConfigurationError for anything else. Of code of the
    user's, only what is among `code` is imported."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as fault:
        raise ConfigurationError("exported_policy_unreadable", file=path, reason=str(fault)) from None
    manifest = parse_manifest(path, text)
    strange = manifest.config.network.entries - code
    if strange:
        raise ConfigurationError("file_names_code", file=path, value=", ".join(sorted(strange)))
    policy = build(manifest.interface, manifest.config, 0)
    _fill(path, policy, weights)
    return manifest, policy


def _fill(path: Path, policy: Policy, weights: Mapping[str, torch.Tensor]) -> None:
    own = acting_weights(policy)
    told = {name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}
    if told != {name: (tensor.dtype, tensor.shape) for name, tensor in own.items()}:
        raise ConfigurationError("exported_weights_of_other_network", file=path)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ConfigurationError("exported_weights_not_finite", file=path, field=name)
        own[name].copy_(tensor)
