"""Tests of protocol/transport."""
