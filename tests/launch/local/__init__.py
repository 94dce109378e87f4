"""Tests of launch/local."""
