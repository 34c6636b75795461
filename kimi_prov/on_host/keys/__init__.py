"""API keys on the machine: made, published to the proxy, listed, with what each may do."""
