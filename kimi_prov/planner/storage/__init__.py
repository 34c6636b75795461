"""Where the weights lie: disk, RAM disk, converted forms."""
