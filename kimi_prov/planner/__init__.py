"""Facts, wishes and the catalogue become a plan."""
