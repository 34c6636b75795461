"""The present state of this machine, and where a gateway sends requests."""
