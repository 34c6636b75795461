"""How much memory a model takes, and where."""
