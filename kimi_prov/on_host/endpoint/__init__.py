"""How the serving port is reached: certificate, HAProxy, draining, health, firewall, stop state."""
