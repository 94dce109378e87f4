"""The file of an exported policy: its weights as safetensors, and a JSON manifest in their header.

In flow: what a policy sees and does, how it is built, its weights, where they come from. Out flow: one file, from which
it acts again without the run that trained it. The same JSON lies beside the file, for people and other programs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from protocol import RELEASE
from protocol.config import PolicyConfig, Replayed
from protocol.errors import ConfigurationError
from protocol.section import Section
from protocol.spaces import Agent, Box, DictPopulation, World
from workers.policies.build import Policy, build, published
from workers.policies.deployed import Port
from workers.policies.flat import flatten_
from workers.policies.interface import Interface

__all__ = ["FORMAT", "KEY", "Manifest", "Provenance", "acting_weights", "frames_of", "read", "write", "write_beside"]

FORMAT = 1
KEY = "rookery"
"""Under which files of all kinds hold the manifest."""


class Provenance(Section):
    """Where weights come from: the run's id and folder, and how far it was."""

    run: str
    folder: str
    incarnation: int
    version: int
    train_steps: int
    rows: int
    """Rows received up to then."""


class Manifest(Section):
    """All that is to be known of an exported policy beside its weights."""

    format: int = FORMAT
    release: str = RELEASE
    policy: str
    world: str
    agent: Agent
    """As deployed: without what only learners see."""
    common: Box | None
    """What all agents of the world see beside."""
    withheld: tuple[str, ...]
    """Columns that learners saw and that are no input."""
    config: PolicyConfig
    network: dict[str, Any]
    """How to compute actions (protocol/README.md, "Acting"), with `inputs` and `outputs` of the network itself."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    provenance: Provenance

    @property
    def interface(self) -> Interface:
        """What the policy sees and does."""
        world = World(id=self.world, population=DictPopulation(agents=(self.agent,), common=self.common))
        return Interface.at(world, world.places[0])

    @property
    def frames(self) -> int:
        """Observations that it stacks."""
        return frames_of(self.config)

    def text(self) -> str:
        """As JSON."""
        return self.model_dump_json(indent=2) + "\n"


def frames_of(config: PolicyConfig) -> int:
    """Observations that a policy stacks."""
    return config.algorithm.frames if isinstance(config.algorithm, Replayed) else 1


def acting_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Names and tensors (shared) of what acting needs: what is published, without what only learning needs."""
    flatten_(policy)
    idle = {
        name
        for name, parameter in policy.named_parameters()
        if not parameter.requires_grad or name.startswith("online.mixer.")
    }
    tensors = {**dict(policy.named_parameters()), **dict(policy.named_buffers())}
    return {e.name: tensors[e.name].detach() for e in published(policy).entries if e.name not in idle}


def write(path: Path, manifest: Manifest, policy: Policy) -> None:
    """Puts the file in place, whole, and its manifest beside it."""
    aside = path.with_name(f".{path.name}.new")
    weights = {name: tensor.cpu().clone().contiguous() for name, tensor in acting_weights(policy).items()}
    aside.write_bytes(save(weights, {KEY: manifest.text()}))
    os.replace(aside, path)
    write_beside(path, manifest)


def write_beside(path: Path, manifest: Manifest) -> None:
    """The manifest as a file of its own."""
    path.with_suffix(".json").write_text(manifest.text())


def read(path: Path) -> tuple[Manifest, Policy]:
    """What `write` wrote, and the policy with its weights; ConfigurationError in one sentence for anything else."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as fault:
        raise ConfigurationError(f"{path} cannot be read as an exported policy ({fault}); export it again") from None
    if text is None:
        raise ConfigurationError(f"{path} holds weights without a manifest; make it with `rookery export`")
    manifest = _parse(path, text)
    policy = build(manifest.interface, manifest.config, 0)
    _fill(path, policy, weights)
    return manifest, policy


def _parse(path: Path, text: str) -> Manifest:
    try:
        plain = json.loads(text)
        if plain.get("format") != FORMAT:
            raise ConfigurationError(
                f"{path} has format {plain.get('format')!r}, this release reads {FORMAT}; use the release that wrote it"
            )
        return Manifest.model_validate(plain)
    except (ValueError, AttributeError, ValidationError):
        raise ConfigurationError(f"{path} has a manifest that is not valid; export the policy again") from None


def _fill(path: Path, policy: Policy, weights: Mapping[str, torch.Tensor]) -> None:
    own = acting_weights(policy)
    told = {name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}
    if told != {name: (tensor.dtype, tensor.shape) for name, tensor in own.items()}:
        raise ConfigurationError(f"{path} holds weights of another network than its manifest says; export it again")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ConfigurationError(f"{path} holds weights that are not finite ({name}); export an older checkpoint")
        own[name].copy_(tensor)
