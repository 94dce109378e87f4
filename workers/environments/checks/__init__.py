"""Checks of what an environment returns and is given."""
