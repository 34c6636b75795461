"""The commands on a folder that was rendered for SLURM."""
