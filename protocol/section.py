"""What all sections of a configuration share: typed, frozen, and an unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """A part of a run's configuration, with its keys as fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )
