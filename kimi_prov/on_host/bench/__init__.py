"""Measure a machine and its served model."""
