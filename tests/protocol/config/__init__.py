"""Tests of protocol/config."""
