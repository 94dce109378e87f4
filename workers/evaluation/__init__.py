"""What policies earn when they do not explore: whole episodes on fixed seeds, in a run and after it."""
