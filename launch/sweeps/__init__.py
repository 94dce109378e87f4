"""Many runs: grids of settings, populations."""
