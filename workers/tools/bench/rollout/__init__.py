"""Benchmarks of actors and simulators."""
