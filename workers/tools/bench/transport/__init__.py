"""Benchmarks of segments and weights on their way."""
