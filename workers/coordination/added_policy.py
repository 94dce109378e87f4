"""A policy that joins a run which goes on, as the words of a command tell it, and what it must not be. Pure.

In flow: `KEY=VALUE` words. Out flow: a policy's section; ConfigurationError, or the reason why it cannot join.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from protocol.config.network import CellCore
from protocol.config.run import PolicyConfig
from protocol.config.yaml_file import parse_yaml
from protocol.errors import ConfigurationError

_SAID = 128
"""Characters of a word that are repeated."""


def section_of(settings: Sequence[str]) -> dict[str, Any]:
    """A policy's section, of `KEY=VALUE` each, where a key may be `part.key` and a value is YAML."""
    section: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        *parts, last = key.split(".")
        inner = section
        for part in parts:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigurationError("roster_setting_malformed", value=setting[:_SAID])
        try:
            if not equals:
                raise ValueError
            inner[last] = json.loads(json.dumps(parse_yaml(text)))
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):  # TypeError: a date
            raise ConfigurationError("roster_setting_malformed", value=setting[:_SAID]) from None
    return section


def foreign(config: PolicyConfig) -> str | None:
    """Why a policy of this configuration cannot join a run that goes on, if so it is."""
    if _entries(config.model_dump()) or not isinstance(config.network.core, CellCore | None):
        return "code of others, or attention, has to be there from the start"
    if config.ranks > 1 or config.record or config.start is not None:
        return "it has several ranks, or a record, or a start"
    return None


def _entries(data: Any) -> bool:
    """Whether code of others is named in it."""
    if isinstance(data, Mapping):
        return any((key == "entry" and value) or _entries(value) for key, value in data.items())
    return isinstance(data, list | tuple) and any(map(_entries, data))
