"""Inventory variables: definitions and parsing."""
