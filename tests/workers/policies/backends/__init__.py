"""Tests of workers/policies/backends."""
