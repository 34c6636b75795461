"""`diagnose`: what the rules recognise on a machine, and the bundle for a bug report."""
