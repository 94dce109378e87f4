"""What a worker tells by HTTP at port base + 9: whether it is well, its metrics, and the coordinator's page."""
