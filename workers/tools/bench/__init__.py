"""Measurements of this machine, each beside its limit or the raw primitive in the same run."""
