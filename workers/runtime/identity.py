"""Which worker of which run a process is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Identity"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Of a worker; what is not known yet is empty."""

    run: str = ""
    role: str = ""
    worker: str = ""
    incarnation: int = 0
