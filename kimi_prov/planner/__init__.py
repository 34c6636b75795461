"""Make a plan from facts, settings and the catalogue."""
