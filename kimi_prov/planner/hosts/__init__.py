"""Decisions about several hosts: groups, neighbours, batches, the site's network."""
