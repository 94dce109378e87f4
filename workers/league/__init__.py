"""Self-play against a growing library of frozen policies: who is in it, how good they are, who meets whom."""
