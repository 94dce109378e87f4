"""Where segments wait to be learned from: batches, replay, lock-step rounds."""
