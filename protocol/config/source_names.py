"""The source documents' names for what has another name here.

In flow: sections of a configuration. Out flow: the same, with each thing under its one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from protocol.config.base import ConfigModel
from protocol.errors import ConfigurationError


class Multiprocessing(ConfigModel):
    """The source documents' section; `enabled: false` means `--sequential`."""

    enabled: bool | None = None
    """false: all in one process, as `--sequential` says."""
    mode: Literal["double_buffer", "snapshot"] | None = None
    """The same as `policy.publish_mode`."""
    num_agents: int | None = Field(default=None, ge=1)
    """Refused when the world has another number of agents."""


def without_aliases(data: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's section with each thing under its one name; ValueError if it is named twice, differently."""
    data = dict(data)
    if "train_interval" in data:
        if data.get("publish_interval", data["train_interval"]) != data["train_interval"]:
            raise ConfigurationError("publish_interval_ambiguous", key="train_interval")
        data["publish_interval"] = data.pop("train_interval")
    if "model_config" in data:
        if "network" in data:
            raise ConfigurationError("network_ambiguous", key="model_config")
        data["network"] = data.pop("model_config") or {}
    return data


def with_named_algorithms(data: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration in which `algorithm: ppo` is written out, as `algorithm: {name: ppo}`."""
    data = dict(data)
    if isinstance(data.get("policy"), Mapping):
        data["policy"] = _named(data["policy"])
    if isinstance(data.get("policies"), Mapping):
        data["policies"] = {name: _named(one) for name, one in data["policies"].items()}
    return data


def _named(policy: Any) -> Any:
    if isinstance(policy, Mapping) and isinstance(policy.get("algorithm"), str):
        return {**policy, "algorithm": {"name": policy["algorithm"]}}
    return policy
