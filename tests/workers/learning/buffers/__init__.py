"""Tests of workers/learning/buffers."""
