"""Starts, watches, stops and explains workers, which it starts by command line only. `train` does so from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.api import Trained, train

__all__ = ["Trained", "train"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: whoever only becomes a worker does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launch import api

    return getattr(api, name)
