"""Checks of who speaks a simulator's part of the wire: an actor that serves, or a simulator, by README.md."""

from protocol.conformance.check_actor import check_server
from protocol.conformance.check_simulator import check_simulator
from protocol.conformance.result import Finding

__all__ = ["Finding", "check_server", "check_simulator"]
