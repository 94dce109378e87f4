"""YAML files that people write. In flow: a path. Out flow: plain data or a run, or a sentence on what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from protocol.config import Run, parse_run
from protocol.errors import ConfigurationError

__all__ = ["read_mapping", "read_run"]

_BYTES = 16 * 2**20
_SAID = 500


def read_mapping(path: Path) -> dict[str, Any]:
    """What the file holds, nothing in it being {}; ConfigurationError if it cannot be read or is no mapping."""
    try:
        if path.stat().st_size > _BYTES:
            raise ConfigurationError(f"{path} has more than {_BYTES} bytes, which no configuration has; give another")
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigurationError(f"{path} cannot be read ({fault.strerror}); give a YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as fault:  # ValueError: no UTF-8, a date that is none
        raise ConfigurationError(f"{path} is no YAML: {' '.join(str(fault).split())[:_SAID]}; correct it") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path} holds no mapping of keys to values; see `rookery presets` for examples")
    return data


def read_run(path: Path) -> Run:
    """The run in a file; ConfigurationError in one sentence."""
    return parse_run(read_mapping(path))
