"""Tests of workers/environments/checks."""
