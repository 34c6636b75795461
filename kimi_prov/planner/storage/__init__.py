"""Where the weights are stored: disk, RAM disk, converted experts."""
