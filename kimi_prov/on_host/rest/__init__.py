"""A machine that does not serve on purpose: stopped by its operator, or asleep."""
