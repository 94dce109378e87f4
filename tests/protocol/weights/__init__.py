"""Tests of protocol/weights."""
