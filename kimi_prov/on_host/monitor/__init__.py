"""A host that monitors others, or itself: the distribution's Prometheus and Alertmanager."""
