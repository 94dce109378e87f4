"""A policy that joins a run which goes on, as the words of a command tell it, and what it must not be. Pure.

In flow: `KEY=VALUE` words. Out flow: a policy's section; ConfigurationError, or the reason why it cannot join.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import yaml

from protocol.config.network import CellCore
from protocol.config.run import PolicyConfig, Run
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


def foreign(config: PolicyConfig, allowed: Collection[str], started: bool) -> str | None:
    """Why a policy of this configuration cannot join a run that goes on, in which code that is `allowed` may be named;
    if so it is. `started`: it begins with weights that were sent."""
    if strange := _entries(config.model_dump()) - {*allowed}:
        return (
            f"{min(strange)} is no code of this run, which a run has to name, or list under allow_entries, at its start"
        )
    if config.ranks > 1 or config.record or (config.start is not None and not started):
        return "it has several ranks, or a record, or a start that is no file which was sent"
    if getattr(config.algorithm, "curiosity", None) is not None:
        return "its curiosity needs an auxiliary, which has to be there from the start"
    if sum(a * b for a, b in pairwise(config.network.hidden)) > _WEIGHTS:
        return f"its layers have more than {_WEIGHTS:,} weights between them"
    return None


def needs_trial(config: PolicyConfig) -> bool:
    """Whether only a process that runs code, of others or of torch, can plan it."""
    return bool(_entries(config.model_dump())) or not isinstance(config.network.core, CellCore | None)


def entries_of(run: Run) -> set[str]:
    """The code of others that policies which join `run` may name."""
    if run.allow_entries is not None:
        return {*run.allow_entries}
    return {entry for config in run.learning for entry in _entries(config.model_dump())}


def _entries(data: Any) -> set[str]:
    """The code of others that is named in it."""
    if isinstance(data, Mapping):
        own = {data["entry"]} if data.get("entry") else set[str]()
        return own.union(*map(_entries, data.values()))
    return set[str]().union(*map(_entries, data)) if isinstance(data, list | tuple) else set()
