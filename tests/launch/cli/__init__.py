"""Tests of launch/cli."""
