"""Shared memory, and what lies in it."""
