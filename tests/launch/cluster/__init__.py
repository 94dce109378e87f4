"""Tests of launch/cluster."""
