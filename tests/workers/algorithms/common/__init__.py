"""Tests of workers/algorithms/common."""
