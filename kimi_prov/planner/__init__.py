"""Facts, settings and the catalogue become a plan."""
