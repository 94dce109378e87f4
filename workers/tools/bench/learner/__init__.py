"""Benchmarks of learners beside plain loops."""
