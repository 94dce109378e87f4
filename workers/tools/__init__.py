"""Commands beside the roles: evaluate, play, export, diagnose."""
