"""Tests of workers/planning."""
