"""The proxy's files and the running proxy: converged, rejoined, certificates renewed by ACME."""
