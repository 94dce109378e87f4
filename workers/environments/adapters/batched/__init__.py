"""Worlds that step all agents in all copies by one call."""
