"""Requests of a machine to the cloud in which it runs."""
