"""Start, check and watch the engine."""
