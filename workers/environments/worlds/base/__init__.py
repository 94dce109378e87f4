"""What several built-in worlds share."""
