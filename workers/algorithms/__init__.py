"""Algorithms: pure maths on tensors, and one update class for each."""
