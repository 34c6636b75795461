"""What a person reads while a command runs and at its end."""
