"""What was written under `environment.settings`, against a world's model of them.

In flow: a mapping. Out flow: the model, or a ConfigurationError that says what to correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.errors import ConfigurationError


class WorldSettings(BaseModel):
    """What may be set under `environment.settings` of a world; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_Model = TypeVar("_Model", bound=WorldSettings)


def parse_settings(id: str, model: type[_Model], settings: Mapping[str, Any]) -> _Model:
    """`settings` of the world `id` as `model`; ConfigurationError for the first fault in one sentence."""
    try:
        return model.model_validate(settings)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        raise ConfigurationError(
            "unknown_environment_setting",
            environment=id,
            field=place,
            choices=known,
            key=f"environment.settings.{place}",
        )
    told = first.get("ctx", {}).get("error")
    if isinstance(told, ConfigurationError):
        key = f"environment.settings.{told.facts.get('field', place)}".rstrip(".")
        raise told.within(f"{id} settings", environment=id, key=key)
    message = first["msg"].removeprefix("Value error, ")
    where = f"setting {place} = {first['input']!r}: " if place else "settings: "
    raise ConfigurationError(
        "environment_setting_invalid",
        environment=id,
        where=where,
        reason=message,
        key=f"environment.settings.{place}".rstrip("."),
    )


def refuse_sequential(id: str, turn_mode: str | None) -> None:
    """ConfigurationError if the agents of the world `id`, which act all at once, are to act one after another."""
    if turn_mode == "sequential":
        raise ConfigurationError(
            "turn_mode_not_supported",
            value=turn_mode,
            environment=id,
            how="all at once",
            expected="simultaneous",
            key="environment.turn_mode",
        )
