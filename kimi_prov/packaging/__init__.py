"""The zipapp, wheels and lock files that are copied to a machine."""
