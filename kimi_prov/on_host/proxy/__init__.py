"""The proxy's files and the running proxy: convergence, rejoining, certificates by ACME."""
