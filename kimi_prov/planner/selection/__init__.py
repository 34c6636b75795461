"""The choice of the engine, and the command line of each of its instances."""
