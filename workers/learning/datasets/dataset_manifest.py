"""What a folder of recorded segments says of itself, as JSON, and how its files are laid out.

`datasets/<policy>/{manifest.json, <incarnation>-<number>.safetensors}`: each file holds n segments, as a tensor
[n, ...] for each field of the layout, as the columns of a ring have it, and one for each of `RECORDS`. Its metadata
names the layout and, under `actors`, the (name, incarnation) that the numbers in `record.actor` stand for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field as Key
from pydantic import ValidationError

from protocol import RELEASE
from protocol.config.base import ConfigModel
from protocol.errors import ConfigurationError, WireError
from protocol.experience.layout import Field, Layout
from protocol.spaces import Agent

FORMAT = 1
MANIFEST, FILES = "manifest.json", "[0-9]*.safetensors"
ACTOR, EPISODE = "record.actor", "record.episode"
RECORDS: dict[str, np.dtype[Any]] = {
    "record.number": np.dtype("<u8"),
    "record.stream": np.dtype("<u8"),
    "record.stream_sequence": np.dtype("<u8"),
    "record.version_min": np.dtype("<u8"),
    "record.version_max": np.dtype("<u8"),
    "record.valid": np.dtype("<u2"),
    "record.before": np.dtype("<u2"),
    EPISODE: np.dtype("<u4"),
    ACTOR: np.dtype("<i4"),
}
"""Of each segment: what its record said (protocol/experience/ring_buffer.py), and who sent it."""
_MOST_BYTES = 1 << 24
"""Of a manifest."""
_MOST_SLOT = 1 << 40
"""Bytes of a segment."""


class DatasetManifest(ConfigModel):
    """Whose segments these are, and of what form."""

    format: int = FORMAT
    release: str = RELEASE
    policy: str
    world: str
    agent: Agent
    """What the policy sees and does."""
    layout: str
    """The hash of the layout that `length`, `before` and `fields` make."""
    length: int = Key(ge=1, le=65_535)
    before: int = Key(ge=0, le=65_535)
    fields: tuple[tuple[str, str, tuple[int, ...], str], ...]
    environment: dict[str, Any]
    """As it was configured."""

    def form(self) -> Layout:
        """The layout; WireError if it is none, or another than the manifest says."""
        fields = []
        for name, dtype, shape, per in self.fields:
            if per not in ("row", "slot") or any(not 0 <= size < _MOST_SLOT for size in shape):
                raise WireError("manifest_field_malformed", field=name)
            fields.append(Field(name, dtype, shape, "row" if per == "row" else "slot"))
        layout = Layout(tuple(fields), self.length, self.before)
        names = [field.name for field in fields]
        if layout.hash != self.layout or len(set(names)) < len(names) or layout.segment_bytes > _MOST_SLOT:
            raise WireError("manifest_layout_mismatch")
        return layout


def read_manifest(folder: Path) -> tuple[DatasetManifest, Layout]:
    """What `folder` holds; ConfigurationError in one sentence if its manifest is not valid."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        plain = json.loads(path.read_text())
        if isinstance(plain, dict) and plain.get("format") != FORMAT:
            raise ConfigurationError("format_not_supported", file=path, value=plain.get("format"), expected=FORMAT)
        manifest = DatasetManifest.model_validate(plain)
        return manifest, manifest.form()
    except ConfigurationError:
        raise
    except (OSError, ValueError, RecursionError, ValidationError, WireError) as fault:
        said = fault.errors()[0]["msg"] if isinstance(fault, ValidationError) else fault
        raise ConfigurationError("dataset_manifest_invalid", file=path, reason=" ".join(str(said).split())) from None
