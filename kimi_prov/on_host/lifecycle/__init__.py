"""Stop, start, restart, idle and wake: when a machine serves, and what that costs."""
