"""Tests of protocol/spaces."""
