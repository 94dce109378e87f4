"""Tests of workers/policies/tensors."""
