"""Code that runs in the jobs of somebody else's cluster: no root, a shared file system."""
