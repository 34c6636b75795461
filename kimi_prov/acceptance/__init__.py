"""What a served model must pass."""
