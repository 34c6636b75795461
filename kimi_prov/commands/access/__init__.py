"""Access of clients and operators to a served model: addresses, keys, trust, tunnels."""
