"""Describe the machine; change nothing."""
