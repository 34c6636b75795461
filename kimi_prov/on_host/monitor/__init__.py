"""A host that watches others, or itself: Prometheus and Alertmanager of the distribution."""
