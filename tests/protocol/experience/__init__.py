"""Tests of protocol/experience."""
