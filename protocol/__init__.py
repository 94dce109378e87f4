"""The wire and the shared memory: what any worker, in any language, must speak. Imports no torch."""

__all__ = ["OLDEST_SCHEMA", "RELEASE", "SCHEMA"]

RELEASE = "0.1.0"
"""The release of this software; two releases work together if they speak a schema in common."""

SCHEMA = 2
"""The newest number of the wire schema that is spoken; it changes when a message or a layout rule changes."""

OLDEST_SCHEMA = 2
"""The oldest number that is still spoken: that of the release before."""
