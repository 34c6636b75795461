"""The opened port: proxy, keys, TLS, firewall, and requests through it."""
