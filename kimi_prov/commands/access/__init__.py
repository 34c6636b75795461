"""How clients and operators reach a served model: addresses, keys, trust, tunnels."""
