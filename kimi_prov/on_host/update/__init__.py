"""Pending updates of the operating system, and their installation."""
