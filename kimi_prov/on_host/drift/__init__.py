"""Differences of this machine from what was applied to it: what, since when and by what."""
