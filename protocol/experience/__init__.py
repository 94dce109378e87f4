"""Segments on their way from actors to learners."""
