"""A watchdog over the engines of this machine: it sees that one hangs, keeps why, and restarts it."""
