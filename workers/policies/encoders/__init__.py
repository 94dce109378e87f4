"""What reads an observation before the rest of a policy's network: ours, and the user's own torch modules."""
