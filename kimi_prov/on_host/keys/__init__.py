"""API keys on the machine: they are made, published to the proxy, and listed with their limits."""
