"""Tests of workers/environments/adapters."""
