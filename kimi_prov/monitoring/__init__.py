"""What Prometheus shows and alerts to: `rules/*.yml` and `consoles/`, loaded by the role monitor."""
