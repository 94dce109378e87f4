"""Checks of who speaks a simulator's part of the wire: an actor that serves, or a simulator, by README.md."""

from protocol.conformance.actor_checks import check_server
from protocol.conformance.probe import Finding
from protocol.conformance.simulator_checks import check_simulator

__all__ = ["Finding", "check_server", "check_simulator"]
