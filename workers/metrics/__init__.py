"""Records of a run: counters, rates, returns, and where they are written."""
