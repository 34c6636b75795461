"""Updates of the operating system that wait, and their installation."""
