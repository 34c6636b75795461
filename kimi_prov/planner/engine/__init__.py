"""The flags, the environment and the experts of each engine."""
