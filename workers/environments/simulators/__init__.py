"""Simulators that connect to an actor as the copies of its world."""

__all__ = ["EXTERNAL"]

EXTERNAL = "external"
"""The `environment.id` of simulators that connect."""
