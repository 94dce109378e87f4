"""The wire and the shared memory: what any worker, in any language, must speak. Imports no torch."""

__all__ = ["RELEASE", "SCHEMA"]

RELEASE = "0.1.0"
"""The release of this software; workers of another release are refused at joining."""

SCHEMA = 1
"""The number of the wire schema; it changes when a message or a layout rule changes."""
