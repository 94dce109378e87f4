"""Rookery's environments as other libraries'."""
