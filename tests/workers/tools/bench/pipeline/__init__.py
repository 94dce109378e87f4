"""Tests of workers/tools/bench/pipeline."""
