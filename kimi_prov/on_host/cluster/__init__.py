"""Code that runs in the jobs of a foreign cluster: no root, a shared file system.

Decides: jobs for a SLURM cluster (what runs in the jobs).
"""
