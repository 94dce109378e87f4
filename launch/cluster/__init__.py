"""Runs on several machines, by SSH, Slurm or Kubernetes, and the commands for them."""
