"""Tests of workers/environments/wrappers."""
