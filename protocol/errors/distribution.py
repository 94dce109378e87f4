"""What `pip` calls this software, and how what an extra needs is installed."""

from __future__ import annotations

DISTRIBUTION = "rookery-rl"
"""In the public index `rookery` is another's."""


def install(extra: str) -> str:
    """The command that brings what one of the extras of pyproject.toml needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
