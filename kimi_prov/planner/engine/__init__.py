"""Which engine runs, with which command line."""
