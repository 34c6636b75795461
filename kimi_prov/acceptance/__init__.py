"""The checks that a served model must pass."""
