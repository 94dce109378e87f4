"""Tests of workers/rollout/players."""
