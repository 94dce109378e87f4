"""Tests of workers/policies."""
