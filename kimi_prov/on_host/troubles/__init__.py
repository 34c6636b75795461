"""Find the cause of what went wrong in the lines of logs."""
