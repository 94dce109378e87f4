"""Tests of workers/algorithms/cuda_graphs."""
