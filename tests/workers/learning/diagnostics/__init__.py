"""Tests of workers/learning/diagnostics."""
