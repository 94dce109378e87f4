"""Tests of workers/algorithms."""
