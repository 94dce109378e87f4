"""Tests of workers/metrics."""
