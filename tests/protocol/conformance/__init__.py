"""Tests of protocol/conformance."""
