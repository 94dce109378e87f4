"""Learning: batches, replay, members, checkpoints."""
