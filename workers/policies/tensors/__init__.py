"""Arithmetic below the networks: matrix products, scratch memory, flat weights, sums over ranks."""
