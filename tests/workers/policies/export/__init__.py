"""Tests of workers/policies/export."""
