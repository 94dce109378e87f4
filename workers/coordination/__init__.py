"""What the coordinator knows: members, assignments, the state of the run."""
