"""Stand-in machines: real systemd, no real hardware."""
