"""What kimi-prov knows of a machine, as metrics for the node exporter's textfile collector."""
