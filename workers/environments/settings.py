"""What was written under `environment.settings`, against a world's model of them.

In flow: a mapping. Out flow: the model, or a ConfigurationError that says what to correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from protocol.errors import ConfigurationError

__all__ = ["fit_within_the_wall", "validated"]

_Model = TypeVar("_Model", bound=BaseModel)


def validated(id: str, model: type[_Model], settings: Mapping[str, Any]) -> _Model:
    """`settings` of the world `id` as `model`; ConfigurationError for the first fault in one sentence."""
    try:
        return model.model_validate(settings)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        raise ConfigurationError(
            f"{id} has no setting {place!r}; remove it from environment.settings or use one of {known}"
        )
    message = first["msg"].removeprefix("Value error, ")
    where = f"setting {place} = {first['input']!r}: " if place else "settings: "
    raise ConfigurationError(f"{id} {where}{message}; correct it in environment.settings")


def fit_within_the_wall(agents: int, height: int, width: int) -> None:
    """ValueError, for a model's validator, if a field of that size in cells, the outer wall included, is too small."""
    cells = (height - 2) * (width - 2)
    if agents > cells:
        raise ValueError(f"{agents} agents do not fit into {cells} cells within the wall")
