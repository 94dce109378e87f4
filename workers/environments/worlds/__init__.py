"""The built-in worlds."""
