"""Tests of workers/tools/bench/rollout."""
