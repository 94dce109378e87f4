"""What is to be known of an exported policy beside its weights: a JSON manifest. Without torch.

In flow: the JSON, from a file's header or beside it. Out flow: a `ExportManifest`, or a ConfigurationError in one
sentence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from protocol import RELEASE
from protocol.config.base import ConfigModel
from protocol.config.run import PolicyConfig
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, DictPopulation, World
from workers.policies.interface import Interface

FORMAT = 1
KEY = "rookery"
"""Under which files of all kinds hold the manifest."""
TABLE = "start"
"""Under which the file of what a policy starts from holds what that is."""


class ArraySpec(ConfigModel):
    """One array that goes in or comes out: [n, *shape] of `dtype` (as numpy writes it)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Provenance(ConfigModel):
    """Where weights come from: the run's id and folder, and how far it was."""

    run: str
    folder: str
    incarnation: int
    version: int
    train_steps: int
    rows: int
    """Rows received up to then."""


class ExportManifest(ConfigModel):
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
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    provenance: Provenance

    @property
    def interface(self) -> Interface:
        """What the policy sees and does."""
        world = World(id=self.world, population=DictPopulation(agents=(self.agent,), common=self.common))
        return Interface.at(world, world.places[0], self.config)

    @property
    def frames(self) -> int:
        """Observations that it stacks."""
        return frames_of(self.config)

    def text(self) -> str:
        """As JSON."""
        return self.model_dump_json(indent=2) + "\n"


def frames_of(config: PolicyConfig) -> int:
    """Observations that a policy stacks."""
    return config.algorithm.frames


def parse_manifest(path: Path, text: str | None) -> ExportManifest:
    """That of the file `path`, which holds `text` as its manifest."""
    if text is None:
        raise ConfigurationError("exported_without_manifest", file=path)
    try:
        plain = json.loads(text)
        if plain.get("format") != FORMAT:
            raise ConfigurationError("format_not_supported", file=path, value=plain.get("format"), expected=FORMAT)
        return ExportManifest.model_validate(plain)
    except ConfigurationError:
        raise
    except (ValueError, AttributeError, ValidationError):
        raise ConfigurationError("exported_manifest_invalid", file=path) from None
