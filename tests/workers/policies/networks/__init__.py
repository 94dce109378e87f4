"""Tests of workers/policies/networks."""
