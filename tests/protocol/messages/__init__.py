"""Tests of protocol/messages."""
