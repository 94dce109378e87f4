"""Tests of launch/sweeps."""
