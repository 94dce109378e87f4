"""What every worker process shares: its life, its logs, its health, its files."""
