"""Code that runs in the jobs of somebody else's cluster: no root, a shared file system.

Decides: jobs for a SLURM cluster (what runs in the jobs).
"""
