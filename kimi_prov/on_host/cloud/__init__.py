"""What a machine asks the cloud that it runs in, and tells it."""
