"""Checks of who speaks a simulator's part of the wire: an actor that serves, or a simulator, by README.md."""

from protocol.conformance.findings import Finding
from protocol.conformance.listener import check_simulator
from protocol.conformance.server import check_server

__all__ = ["Finding", "check_server", "check_simulator"]
