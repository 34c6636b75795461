"""What a machine is: read-only."""
