"""What a learner checks and reports about its updates."""
