"""Scripted players of the built-in worlds."""
