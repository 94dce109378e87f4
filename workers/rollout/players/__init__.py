"""Players whose policies do not learn: scripted ones and frozen ones."""
