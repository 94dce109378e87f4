"""Tests of workers/environments/vectorized."""
