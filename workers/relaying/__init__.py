"""What a relay does for its node, and how the coordinator leads others to it."""
