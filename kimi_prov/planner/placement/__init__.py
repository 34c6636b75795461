"""Which NUMA nodes and CPUs an instance is bound to."""
