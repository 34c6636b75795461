"""Renders what a scheduler or a cloud starts: a folder for each kind."""
