"""A watchdog over this machine's engines: sees that one hangs, keeps why, and restarts it."""
