"""Measure the machine and its served model."""
