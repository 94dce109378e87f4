"""Tests of workers/algorithms/stacked."""
