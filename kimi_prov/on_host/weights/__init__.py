"""Fetch, verify and stage the weights."""
