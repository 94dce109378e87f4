"""What remembers in front of the heads of a network: torch modules of the user's own, and ours on the same base."""
