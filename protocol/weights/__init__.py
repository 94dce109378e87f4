"""Weights on their way from learners to actors."""
