"""What travels to a machine, and where the parts of this package lie."""
