"""Tests of protocol/control."""
