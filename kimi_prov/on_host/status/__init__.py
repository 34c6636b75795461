"""What runs on this machine now, and what a gateway sends where."""
