"""Processes, files, units, locks and progress."""
