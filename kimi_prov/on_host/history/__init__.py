"""What was applied to this machine, and the rollback to it."""
