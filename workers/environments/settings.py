"""What was written under `environment.settings`, against a world's model of them.

In flow: a mapping. Out flow: the model, or a ConfigurationError that says what to correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from protocol.errors import ConfigurationError

__all__ = ["check_grid_size", "parse_settings"]

_Model = TypeVar("_Model", bound=BaseModel)


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


def check_grid_size(agents: int, height: int, width: int) -> None:
    """ConfigurationError, for a model's validator, if a field of that size in cells, the outer wall included, is
    too small."""
    cells = (height - 2) * (width - 2)
    if agents > cells:
        raise ConfigurationError("agents_exceed_cells_within_wall", agents=agents, limit=cells, field="agents")
