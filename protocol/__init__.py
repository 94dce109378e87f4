"""The wire and the shared memory: what any worker, in any language, must speak. Imports no torch."""

__all__ = ["DISTRIBUTION", "OLDEST_SCHEMA", "RELEASE", "SCHEMA", "install"]

DISTRIBUTION = "rookery-rl"
"""What `pip` calls this software: `rookery` is another's in the public index."""

RELEASE = "0.1.0"
"""The release of this software; two releases work together if they speak a schema in common."""

SCHEMA = 2
"""The newest number of the wire schema that is spoken; it changes when a message or a layout rule changes."""

OLDEST_SCHEMA = 2
"""The oldest number that is still spoken: that of the release before."""


def install(extra: str) -> str:
    """The command that brings what one of the extras of pyproject.toml needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
