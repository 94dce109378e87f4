"""Tests of workers/coordination."""
