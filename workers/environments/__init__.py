"""Worlds: built in, adapted from Gymnasium and PettingZoo, or the user's own. Nothing in here imports torch."""
