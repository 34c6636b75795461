"""`diagnose`: what is recognised in what a machine gathered, and the bundle for a bug report."""
