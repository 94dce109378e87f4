"""Workers of other machines: by SSH, by Slurm."""
