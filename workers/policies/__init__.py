"""Policies: the networks that act and learn, and their flat weights."""
