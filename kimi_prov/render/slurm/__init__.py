"""Render a plan as jobs of a SLURM cluster: no root, no proxy, a shared file system."""
