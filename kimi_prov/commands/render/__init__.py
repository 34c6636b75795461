"""Render folders of files that a scheduler or a cloud starts."""
