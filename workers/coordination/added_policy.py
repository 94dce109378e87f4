"""A policy that joins a run which goes on, as the words of a command tell it, and what it must not be. Pure.

In flow: `KEY=VALUE` words. Out flow: a policy's section; ConfigurationError, or the reason why it cannot join.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import yaml

from protocol.config.network import CellCore
from protocol.config.run import PolicyConfig
from protocol.config.yaml_file import parse_yaml
from protocol.errors import ConfigurationError

_SAID, _MOST = 128, 4_096
"""Characters of a word that are repeated, and of all settings: they go with every status to every worker."""
_WEIGHTS = 100_000_000
"""Between layers of a network that each actor makes while it acts."""


def section_of(settings: Sequence[str]) -> dict[str, Any]:
    """A policy's section, of `KEY=VALUE` each, where a key may be `part.key` and a value is YAML."""
    if sum(map(len, settings)) > _MOST:
        raise ConfigurationError("roster_settings_too_long", value=sum(map(len, settings)), limit=_MOST)
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
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
                raise ValueError  # a few hundred characters may stand for billions
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
    if getattr(config.algorithm, "curiosity", None) is not None:
        return "its curiosity needs an auxiliary, which has to be there from the start"
    if sum(a * b for a, b in pairwise(config.network.hidden)) > _WEIGHTS:
        return f"its layers have more than {_WEIGHTS:,} weights between them"
    return None


def _entries(data: Any) -> bool:
    """Whether code of others is named in it."""
    if isinstance(data, Mapping):
        return any((key == "entry" and value) or _entries(value) for key, value in data.items())
    return isinstance(data, list | tuple) and any(map(_entries, data))
