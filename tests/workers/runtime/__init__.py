"""Tests of workers/runtime."""
