"""`rookery play`: a person plays one agent of a world, in a browser."""
