"""Environments around an environment: teams, central state, blocks of copies in lock-step."""
