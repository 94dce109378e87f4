"""What all sections of a configuration share: typed, frozen, an unknown key is an error, and what is written is read
again as it was."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

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
        raise ValueError(
            "something in it is no text, number, truth, list or mapping (a date, .nan), or a key of it is no text, and "
            "would be another when it is written and read again; quote it"
        )
    return settings


Settings = Annotated[dict[str, Any], AfterValidator(_stays)]
"""Keys and values that somebody else gives a meaning: what JSON can say, and infinite numbers."""
