"""Tests of protocol/memory."""
