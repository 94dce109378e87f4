"""What all sections of a configuration share: typed, frozen, an unknown key is an error, and what is written is read
again as it was."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from protocol.errors import ConfigurationError

__all__ = ["Section", "Settings"]


class Section(BaseModel):
    """A part of a run's configuration, with its keys as fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


def _stays(settings: dict[str, Any]) -> dict[str, Any]:
    try:
        again = json.loads(json.dumps(settings))
    except (TypeError, RecursionError):
        again = None
    if again != settings:
        raise ConfigurationError("settings_not_plain_data")
    return settings


Settings = Annotated[dict[str, Any], AfterValidator(_stays)]
"""Keys and values that somebody else gives a meaning: what JSON can say, and infinite numbers."""
