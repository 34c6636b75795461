"""A watchdog over this machine's engines: it detects a hanging one, keeps evidence, restarts it."""
