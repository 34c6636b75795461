"""What was applied to this machine, and the way back to it."""
