"""kimi-prov's metrics of a machine, for the node exporter's textfile collector."""
