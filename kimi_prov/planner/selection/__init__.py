"""Which engine serves, and the command line of each of its instances."""
