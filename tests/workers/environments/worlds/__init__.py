"""Tests of workers/environments/worlds."""
