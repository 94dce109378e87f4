"""Requests to the coordinator, and the heartbeats that it receives."""
