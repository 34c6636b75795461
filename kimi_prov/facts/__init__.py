"""Facts about a machine, from a probe, a recording or a spec sheet."""
